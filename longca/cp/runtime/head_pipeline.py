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
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from longca.cp.contract import PreparedByHeads, TokenShard
from longca.cp.partition.mesh import Mesh, formula_bytes
from longca.cp.partition.sharding import even_ranges
from longca.cp.runtime.accumulate import sum_of_costs
from longca.cp.runtime.head_exchange import HeadExchange, HeadGather
from longca.cp.schedule.work_partition import describe_chunks
from longca.kernels import Forward, backward_with_sinks, forward_with_sinks

if TYPE_CHECKING:
    import torch

    from longca.cp.comm.backend import Comm
    from longca.cp.contract import Grads, LocalAttention
    from longca.cp.partition.mesh import HeadChunk, RankHeads
    from longca.cp.schedule.work_partition import WorkPartition
    from longca.kernels import Kernel, Prepared, Problem


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
        self._exchange = exchange
        self._chunks = chunks
        self._calls = calls
        self._keeps = keeps
        self._num_q_heads = chunks[0].heads.num_q_heads
        self._num_kv_heads = chunks[0].heads.num_kv_heads
        # over all chunks: ranks with copies of a KV head may return its gradients after different chunks
        self._shared = sum(len(heads) for chunk in chunks for heads in chunk.leaving) > self._num_kv_heads

    def forward(
        self, q_LHD: torch.Tensor, k_LGD: torch.Tensor, v_LGD: torch.Tensor, sinks_H: torch.Tensor | None
    ) -> Forward:
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
        saved = []
        keys = []
        for chunk, call in zip(self._chunks, self._calls, strict=True):
            q, *received = in_flight.pop(0).wait()
            if chunk.arriving[self._exchange.index]:
                keys = received
            local = Forward(q)  # empty without a call
            if call is not None:
                k, v = keys
                local = call.forward(q, k, v, None if sinks_H is None else sinks_H[self._own_heads(chunk)])
            saved.append(local.saved)
            gather.post([local.out], [chunk.q])
            gather.collect(but_last=1)
        return Forward(*gather.result(), saved=(saved, sinks_H is not None))

    def backward(self, saved: Any, dout_LHD: torch.Tensor) -> Grads:
        """(dq L × H × D, dk and dv L × G × D, that of the sinks: (H,), 0 for heads of other ranks)."""
        import torch

        of_chunks, with_sinks = saved
        dsinks = dout_LHD.new_zeros(self._num_q_heads, dtype=torch.float32) if with_sinks else None
        in_flight = [
            self._exchange.to_heads((dout_LHD,), (chunk.q,), number)
            for number, chunk in enumerate(self._chunks)
        ]
        counts = self._num_q_heads, self._num_kv_heads, self._num_kv_heads
        gather = HeadGather(self._exchange, counts, (False, self._shared, self._shared), dout_LHD)
        sums = _KvHeadSums()
        for chunk, call, kept in zip(self._chunks, self._calls, of_chunks, strict=True):
            (dout,) = in_flight.pop(0).wait()
            grads = [dout, dout, dout]  # empty without a call
            if call is not None:
                dq, dk, dv, of_sinks = call.backward(kept, dout)
                if dsinks is not None and of_sinks is not None:
                    dsinks[self._own_heads(chunk)] = of_sinks
                grads = [dq, *sums.add((dk, dv), leaving=bool(chunk.leaving[self._exchange.index]))]
            gather.post(grads, [chunk.q, chunk.leaving, chunk.leaving])
            gather.collect(but_last=1)
        dq, dk, dv = gather.result()
        return dq, dk, dv, dsinks

    def _own_heads(self, chunk: HeadChunk) -> slice:
        """The query heads of a chunk that this rank computes."""
        heads = chunk.q[self._exchange.index]
        return slice(heads.start, heads.stop)


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
        totals = self._totals
        self._totals = []
        return [total.to(grad.dtype) for total, grad in zip(totals, grads, strict=True)]


class PreparedHeads(PreparedByHeads):
    """A strategy that splits only heads: each rank runs the whole sequence by itself, chunk by chunk."""

    def __init__(self, problem: Problem, kernel: Kernel, comm: Comm, work: WorkPartition) -> None:
        """
        Args:
            work: a work partition of heads only.
        """
        tokens = even_ranges(problem.mask.seqlen_q, comm.world)
        mine = tokens[comm.rank]
        super().__init__(problem, TokenShard(np.arange(mine.start, mine.stop, dtype=np.int64)))
        receive_buffers = comm.receive_buffers()
        chunks = work.chunks
        exchange = HeadExchange(comm, range(comm.world), tokens, receive_buffers)
        exchange.reserve(chunks, problem)
        receive_buffers.allocate()
        calls = self._prepare_calls(work, problem, kernel, comm.rank)
        self._attention = HeadPipeline(exchange, chunks, calls, problem.needs_backward)
        self.costs |= sum_of_costs(
            {id(call.prepared): call.prepared for call in calls if call is not None}.values()
        )
        self.costs["num_kernel_calls"] = float(sum(call is not None for call in calls))
        self.costs |= _formula_bytes(problem, comm.world)
        self.notes += filter(None, [comm.messages_note])
        if len(chunks) > 1:
            self.notes.insert(0, f"heads in chunks of {describe_chunks(chunks)}")

    def _prepare_calls(
        self, work: WorkPartition, problem: Problem, kernel: Kernel, rank: int
    ) -> list[HeadCall | None]:
        """The call of each chunk. Chunks with equal masks and numbers of heads share a prepared kernel."""
        calls: list[HeadCall | None] = []
        prepared: dict[tuple[str, int, int], Prepared] = {}
        for chunk in work.chunks:
            heads = chunk.heads.ranks[rank]
            if not heads.q:
                calls.append(None)
                continue
            groups = work.mask_groups(chunk, rank)
            mask = problem.mask.select_groups(groups.start, groups.stop)
            key = mask.digest, len(heads.q), len(heads.local_kv)
            if key not in prepared:
                prepared[key] = kernel.prepare(
                    replace(problem, mask=mask, num_q_heads=len(heads.q), num_kv_heads=len(heads.local_kv))
                )
                self.notes += [note for note in prepared[key].notes if note not in self.notes]
            calls.append(HeadCall(prepared[key], heads))
            if heads.expanded:
                self.notes.append(
                    f"rank {rank}: {len(heads.q)} query heads cut through KV groups, so the kernel call gets "
                    f"{len(heads.local_kv)} KV heads, copied from {len(heads.kv)} inside the timed call"
                )
        if not any(calls):
            self.notes.append(f"rank {rank} has no heads")
        return calls


class HeadCall:
    """A kernel on all tokens and some heads: T × h × D and T × g × D, with heads as received by the rank."""

    def __init__(self, prepared: Prepared, heads: RankHeads) -> None:
        import torch

        from longca.ops import on_device

        self.prepared = prepared
        self._num_kv_heads = len(heads.kv)
        self._copies = (
            on_device([torch.tensor(heads.local_kv)], prepared.problem.device)[0] if heads.expanded else None
        )
        """the received head for each KV head of the kernel, if the kernel repeats some"""

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor | None
    ) -> Forward:
        k = self._expand(k)
        v = self._expand(v)
        if sinks is not None:
            local = forward_with_sinks(self.prepared, q, k, v, sinks)
            out = local.out
        else:
            local = self.prepared.forward(*map(self.prepared.to_layout, (q, k, v)))
            out = self.prepared.from_layout(local.out).detach()
        needs_backward = self.prepared.problem.needs_backward
        return Forward(out, saved=(local, sinks is not None) if needs_backward else None)

    def backward(self, saved: Any, dout: torch.Tensor) -> Grads:
        local, with_sinks = saved
        if with_sinks:
            dq, dk, dv, dsinks = backward_with_sinks(self.prepared, local, dout)
        else:
            dsinks = None
            grads = self.prepared.backward(local, self.prepared.to_layout(dout))
            dq, dk, dv = map(self.prepared.from_layout, grads)
        return dq, self._fold(dk), self._fold(dv), dsinks

    def _expand(self, x_TgD: torch.Tensor) -> torch.Tensor:
        return x_TgD if self._copies is None else x_TgD.index_select(1, self._copies)

    def _fold(self, grad: torch.Tensor) -> torch.Tensor:
        """Gradients of copied KV heads, summed in float32 over the copies of each."""
        if self._copies is None:
            return grad
        wide = grad.float()
        return (
            wide.new_zeros(wide.shape[0], self._num_kv_heads, wide.shape[2])
            .index_add_(1, self._copies, wide)
            .to(grad.dtype)
        )


def _formula_bytes(problem: Problem, world: int) -> dict[str, float]:
    """`formula_bytes` by the study's formula, and `formula_replicated_bytes` with max(G, N) instead of G.

    The formula ignores that N ranks, more than the G KV heads, have N copies of KV heads in total.
    """
    copied = replace(problem, num_kv_heads=max(problem.num_kv_heads, world))
    return {
        "formula_bytes": formula_bytes(problem, Mesh(1, world)),
        "formula_replicated_bytes": formula_bytes(copied, Mesh(1, world)),
    }
