"""Attention with split heads, in chunks: one is computed while the next arrives and the previous result
returns.

    comm stream "heads"     chunk 0 | chunk 1 | chunk 2 |
    kernels                         | chunk 0 | put | chunk 1 | put | chunk 2 | put
    comm stream "tokens"                      | chunk 0       | chunk 1       | chunk 2 |

All chunks are posted at the start, in order. So a slow host delays nothing, and an all-to-all gets
multiprocessors before the concurrent attention kernel occupies all of them: the second one is enqueued when
the first chunk's kernel starts, later ones start between two kernels. A chunk's result is posted right after
its kernel. Then the heads of the previous chunk are copied into place; this is elementwise work before the
next kernel, during which a message can start.

Shapes: L tokens of this rank, T of all; H query and G KV heads, of which a chunk has h and g on this rank; D
    head dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from longca.cp.runtime.head_exchange import HeadExchange, HeadGather
from longca.kernels.contract import Forward

if TYPE_CHECKING:
    import torch

    from longca.cp.schedule.work_partition import HeadChunk

    Grads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class LocalAttention(Protocol):
    """Attention with all tokens and some heads: T × h × D and T × g × D."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Forward:
        """The output as T × h × D, without a graph, and the inputs of its backward."""
        ...

    def backward(self, saved: Any, dout: torch.Tensor) -> Grads: ...


class HeadPipeline:
    """Attention of all chunks of one rank.

    Args:
        calls: call of each chunk; None if this rank has no heads in it.
        keeps: True if tensors received in a forward call are needed for its backward.
    """

    def __init__(
        self,
        exchange: HeadExchange,
        chunks: Sequence[HeadChunk],
        calls: Sequence[LocalAttention | None],
        keeps: bool,
    ) -> None:
        self._exchange, self._chunks, self._calls, self._keeps = exchange, chunks, calls, keeps
        self._num_q_heads, self._num_kv_heads = chunks[0].heads.num_q_heads, chunks[0].heads.num_kv_heads
        # over all chunks: ranks with copies of a KV head may return its gradients after different chunks
        self._shared = sum(len(heads) for chunk in chunks for heads in chunk.leaving) > self._num_kv_heads

    def forward(self, q_LHD: torch.Tensor, k_LGD: torch.Tensor, v_LGD: torch.Tensor) -> Forward:
        """The output L × H × D, and in `saved` the inputs of each chunk's backward.

        There is no LSE: it belongs to this rank's heads, and returning it would be unnecessary traffic.
        """
        in_flight = [
            self._exchange.to_heads(
                (q_LHD, k_LGD, v_LGD), (chunk.q, chunk.arriving, chunk.arriving), number, self._keeps
            )
            for number, chunk in enumerate(self._chunks)
        ]
        gather = HeadGather(self._exchange, [self._num_q_heads], [False], q_LHD)
        saved, keys = [], []
        for chunk, call in zip(self._chunks, self._calls, strict=True):
            q, *received = in_flight.pop(0).wait()
            if chunk.arriving[self._exchange.index]:
                keys = received
            local = Forward(q) if call is None else call.forward(q, *keys)  # q is empty without a call
            saved.append(local.saved)
            gather.post([local.out], [chunk.q])
            gather.collect(but_last=1)
        return Forward(*gather.result(), saved=saved)

    def backward(self, saved: Sequence[Any], dout_LHD: torch.Tensor) -> Grads:
        """(dq L × H × D, dk and dv L × G × D)."""
        in_flight = [
            self._exchange.to_heads((dout_LHD,), (chunk.q,), number)
            for number, chunk in enumerate(self._chunks)
        ]
        counts = self._num_q_heads, self._num_kv_heads, self._num_kv_heads
        gather = HeadGather(self._exchange, counts, (False, self._shared, self._shared), dout_LHD)
        sums = _KvHeadSums()
        for chunk, call, kept in zip(self._chunks, self._calls, saved, strict=True):
            (dout,) = in_flight.pop(0).wait()
            grads = [dout, dout, dout]  # empty without a call
            if call is not None:
                dq, *of_keys = call.backward(kept, dout)
                grads = [dq, *sums.add(of_keys, leaving=bool(chunk.leaving[self._exchange.index]))]
            gather.post(grads, [chunk.q, chunk.leaving, chunk.leaving])
            gather.collect(but_last=1)
        dq, dk, dv = gather.result()
        return dq, dk, dv


class _KvHeadSums:
    """Gradients of KV heads shared by several chunks, in float32 until the last of these chunks."""

    def __init__(self) -> None:
        self._totals: list[torch.Tensor] = []

    def add(self, grads: Sequence[torch.Tensor], *, leaving: bool) -> list[torch.Tensor]:
        """Adds a chunk's gradients. Returns the gradients to send after it: the sums in the dtype of the
        gradients, or no heads if more chunks follow."""
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
