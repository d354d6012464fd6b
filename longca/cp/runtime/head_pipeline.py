"""Attention where ranks divide heads, in chunks: one is computed while the next arrives and the last one's result returns.

    comm stream "heads"     chunk 0 | chunk 1 | chunk 2 |
    kernels                         | chunk 0 | put | chunk 1 | put | chunk 2 | put
    comm stream "tokens"                      | chunk 0       | chunk 1       | chunk 2 |

All chunks are posted at the start, the first one first. So nothing waits for a host that is behind, and an all-to-all finds
multiprocessors before the attention kernel beside it takes them all: the second one is in its stream when the first chunk's kernel
starts, later ones start between two kernels. A chunk's result is posted right after its kernel. Then the heads of the chunk before are
put into place, which is elementwise work: before the next kernel, so that a message can start beside it.

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
        """The output as T × h × D, without a graph, and what its backward needs."""
        ...

    def backward(self, saved: Any, dout: torch.Tensor) -> Grads: ...


class HeadPipeline:
    """Attention of all chunks of one rank.

    Args:
        calls: for each chunk; None where this rank has no heads in it.
        keeps: what is received in a forward call is needed for its backward.
    """

    def __init__(self, exchange: HeadExchange, chunks: Sequence[HeadChunk], calls: Sequence[LocalAttention | None], keeps: bool) -> None:
        self._exchange, self._chunks, self._calls, self._keeps = exchange, chunks, calls, keeps
        self._num_q_heads, self._num_kv_heads = chunks[0].heads.num_q_heads, chunks[0].heads.num_kv_heads
        # over all chunks: ranks that have copies of a KV head need not return its gradients after the same one
        self._shared = sum(len(heads) for chunk in chunks for heads in chunk.leaving) > self._num_kv_heads

    def forward(self, q_LHD: torch.Tensor, k_LGD: torch.Tensor, v_LGD: torch.Tensor) -> Forward:
        """The output L × H × D, and in `saved` what each chunk's backward needs.

        There is no LSE: it belongs to this rank's heads, and to return it would be traffic that attention does not need.
        """
        in_flight = [self._exchange.to_heads((q_LHD, k_LGD, v_LGD), (chunk.q, chunk.arriving, chunk.arriving), number, self._keeps)
                     for number, chunk in enumerate(self._chunks)]
        gather = HeadGather(self._exchange, [self._num_q_heads], [False], q_LHD)
        saved, keys = [], []
        for chunk, call in zip(self._chunks, self._calls, strict=True):
            q, *received = in_flight.pop(0).wait()
            if chunk.arriving[self._exchange.index]:
                keys = received
            local = Forward(q) if call is None else call.forward(q, *keys)  # without a call q is empty
            saved.append(local.saved)
            gather.post([local.out], [chunk.q])
            gather.collect(but_last=1)
        return Forward(*gather.result(), saved=saved)

    def backward(self, saved: Sequence[Any], dout_LHD: torch.Tensor) -> Grads:
        """(dq L × H × D, dk and dv L × G × D)."""
        in_flight = [self._exchange.to_heads((dout_LHD,), (chunk.q,), number) for number, chunk in enumerate(self._chunks)]
        counts = self._num_q_heads, self._num_kv_heads, self._num_kv_heads
        gather = HeadGather(self._exchange, counts, (False, self._shared, self._shared), dout_LHD)
        sums = _KvHeadSums()
        for chunk, call, kept in zip(self._chunks, self._calls, saved, strict=True):
            (dout,) = in_flight.pop(0).wait()
            grads = [dout, dout, dout]  # empty, unless there is a call
            if call is not None:
                dq, *of_keys = call.backward(kept, dout)
                grads = [dq, *sums.add(of_keys, leaving=bool(chunk.leaving[self._exchange.index]))]
            gather.post(grads, [chunk.q, chunk.leaving, chunk.leaving])
            gather.collect(but_last=1)
        dq, dk, dv = gather.result()
        return dq, dk, dv


class _KvHeadSums:
    """Gradients of KV heads that several chunks attend to, in float32 until the last of these chunks."""

    def __init__(self) -> None:
        self._totals: list[torch.Tensor] = []

    def add(self, grads: Sequence[torch.Tensor], *, leaving: bool) -> list[torch.Tensor]:
        """Adds a chunk's gradients. Returns what leaves after it: the sums in the dtype of the gradients, or no heads if more will come."""
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
