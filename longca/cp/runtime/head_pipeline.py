"""Attention where ranks divide heads: chunks of heads arrive, are computed with, and go home, each while others are at it.

All chunks set out at the start, the first one first. So nothing waits for a host that is behind, and an all-to-all finds
multiprocessors before the attention kernel beside it takes them all: the next one is in its lane when the first chunk's kernel
starts, later ones get in between two kernels. What goes home is posted right after its kernel; putting heads into place, which is
elementwise work, follows before the next kernel, for the same reason.

Shapes: L tokens of this rank, T of all; H query and G KV heads, of which a chunk has h and g on this rank; D head dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from longca.cp.runtime.head_exchange import HeadExchange, HeadGather
from longca.kernels.contract import Forward

if TYPE_CHECKING:
    import torch

    from longca.cp.schedule.head_chunking import HeadChunk

    Grads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class LocalAttention(Protocol):
    """Attention with all tokens and some heads: T × h × D and T × g × D."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Forward:
        """The output as T × h × D, of no graph, and what its backward needs."""
        ...

    def backward(self, saved: Any, dout: torch.Tensor) -> Grads: ...


class HeadPipeline:
    """
    Args:
        calls: for each chunk; None where this rank has no heads in it.
        keeps: what arrives in a forward call is needed for its backward.
    """

    def __init__(self, exchange: HeadExchange, chunks: Sequence[HeadChunk], calls: Sequence[LocalAttention | None], keeps: bool) -> None:
        self._exchange, self._chunks, self._calls, self._keeps = exchange, chunks, calls, keeps
        self._num_q_heads, self._num_kv_heads = chunks[0].heads.num_q_heads, chunks[0].heads.num_kv_heads
        # over all chunks: ranks that have copies of a KV head need not give up its gradients after the same one
        self._shared = sum(len(share) for chunk in chunks for share in chunk.leaving) > self._num_kv_heads

    def forward(self, q_LHD: torch.Tensor, k_LGD: torch.Tensor, v_LGD: torch.Tensor) -> Forward:
        """The output L × H × D, without LSE: that is of this rank's heads, and to bring it home would be traffic that attention does not
        need. `saved` is what each chunk's backward needs.
        """
        under_way = [self._exchange.to_heads((q_LHD, k_LGD, v_LGD), (chunk.q, chunk.arriving, chunk.arriving), number, self._keeps)
                     for number, chunk in enumerate(self._chunks)]
        home = HeadGather(self._exchange, [self._num_q_heads], [False], q_LHD)
        saved, keys = [], []
        for chunk, call in zip(self._chunks, self._calls, strict=True):
            q, *arrived = under_way.pop(0).wait()
            if chunk.arriving[self._exchange.number]:
                keys = arrived
            local = Forward(q) if call is None else call.forward(q, *keys)  # q is empty then
            saved.append(local.saved)
            home.post([local.out], [chunk.q])
            home.collect(but_last=1)
        return Forward(*home.result(), saved=saved)

    def backward(self, saved: Sequence[Any], dout_LHD: torch.Tensor) -> Grads:
        """(dq L × H × D, dk and dv L × G × D)."""
        under_way = [self._exchange.to_heads((dout_LHD,), (chunk.q,), number) for number, chunk in enumerate(self._chunks)]
        counts = self._num_q_heads, self._num_kv_heads, self._num_kv_heads
        home = HeadGather(self._exchange, counts, (False, self._shared, self._shared), dout_LHD)
        sums = _Sums()
        for chunk, call, kept in zip(self._chunks, self._calls, saved, strict=True):
            (dout,) = under_way.pop(0).wait()
            grads = [dout, dout, dout]  # empty, unless there is a call
            if call is not None:
                dq, *of_keys = call.backward(kept, dout)
                grads = [dq, *sums.add(of_keys, leaving=bool(chunk.leaving[self._exchange.number]))]
            home.post(grads, [chunk.q, chunk.leaving, chunk.leaving])
            home.collect(but_last=1)
        dq, dk, dv = home.result()
        return dq, dk, dv


class _Sums:
    """Gradients of KV heads that several chunks attend to, in float32 until the last of these."""

    def __init__(self) -> None:
        self._totals: list[torch.Tensor] = []

    def add(self, grads: Sequence[torch.Tensor], *, leaving: bool) -> list[torch.Tensor]:
        """What goes home: the sums, in the dtype of the gradients, or, of heads that have to wait, none."""
        if leaving and not self._totals:
            return list(grads)
        if not self._totals:
            self._totals = [grad.float() for grad in grads]
        else:
            for total, grad in zip(self._totals, grads, strict=True):
                total.add_(grad)
        if not leaving:
            return [grad[:, :0] for grad in grads]
        totals, self._totals = self._totals, []
        return [total.to(grad.dtype) for total, grad in zip(totals, grads, strict=True)]
