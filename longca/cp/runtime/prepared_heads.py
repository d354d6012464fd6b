"""Heads divided among all ranks: each runs the whole sequence on its own, a chunk of them after another.

L tokens of this rank, T of all; h query heads and g KV heads of a chunk on this rank.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from longca.cp.contract import PreparedStrategy, TokenShard
from longca.cp.partition.mesh import Mesh
from longca.cp.partition.sharding import even_ranges
from longca.cp.runtime.head_exchange import HeadExchange
from longca.cp.runtime.head_pipeline import HeadPipeline
from longca.cp.runtime.kernel_call import sum_of_costs
from longca.cp.schedule.head_chunking import describe_chunks
from longca.cp.traffic_formula import formula_bytes
from longca.kernels.contract import Forward

if TYPE_CHECKING:
    import torch

    from longca.cp.comm.process_group import Comm
    from longca.cp.partition.heads import RankHeads
    from longca.cp.schedule.work_partition import WorkPartition
    from longca.kernels.contract import Kernel, Prepared, Problem


class PreparedHeads(PreparedStrategy):
    def __init__(self, problem: Problem, kernel: Kernel, comm: Comm, division: WorkPartition) -> None:
        """
        Args:
            division: one of heads alone.
        """
        tokens = even_ranges(problem.mask.seqlen_q, comm.world)
        mine = tokens[comm.rank]
        super().__init__(problem, TokenShard(np.arange(mine.start, mine.stop, dtype=np.int64)))
        landings, chunks = comm.landings(), division.chunks
        exchange = HeadExchange(comm, range(comm.world), tokens, landings)
        exchange.reserve(chunks, problem)
        landings.settle()
        calls = self._prepare_calls(division, problem, kernel, comm.rank)
        self._pipeline = HeadPipeline(exchange, chunks, calls, problem.needs_backward)
        self.costs |= sum_of_costs({id(call.prepared): call.prepared for call in calls if call is not None}.values())
        self.costs["num_kernel_calls"] = float(sum(call is not None for call in calls))
        self.costs |= _formula_bytes(problem, comm.world)
        self.notes += filter(None, [comm.messages_note])
        if len(chunks) > 1:
            self.notes.insert(0, f"heads in chunks of {describe_chunks(chunks)}")

    def _prepare_calls(self, division: WorkPartition, problem: Problem, kernel: Kernel, rank: int) -> list[HeadCall | None]:
        """Chunks of as many heads under equal masks share a prepared kernel."""
        calls: list[HeadCall | None] = []
        prepared: dict[tuple[str, int, int], Prepared] = {}
        for chunk in division.chunks:
            share = chunk.heads.ranks[rank]
            if not share.q:
                calls.append(None)
                continue
            groups = division.mask_groups(chunk, rank)
            mask = problem.mask.select_groups(groups.start, groups.stop)
            key = mask.digest, len(share.q), len(share.local_kv)
            if key not in prepared:
                prepared[key] = kernel.prepare(replace(problem, mask=mask, num_q_heads=len(share.q), num_kv_heads=len(share.local_kv)))
                self.notes += [note for note in prepared[key].notes if note not in self.notes]
            calls.append(HeadCall(prepared[key], share))
            if share.expanded:
                self.notes.append(f"rank {rank}: {len(share.q)} query heads cut through KV groups, so the kernel call gets "
                                  f"{len(share.local_kv)} KV heads, copied from {len(share.kv)} inside the timed call")
        if not any(calls):
            self.notes.append(f"rank {rank} has no heads")
        return calls

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Forward:
        return self._pipeline.forward(q.detach(), k.detach(), v.detach())

    def backward(self, forward: Forward, dout: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self._pipeline.backward(forward.saved, dout.detach())


class HeadCall:
    """A kernel on all tokens and some heads. T tokens, h query and g KV heads, as they have been sent to the rank; D head dim."""

    def __init__(self, prepared: Prepared, share: RankHeads) -> None:
        import torch

        self.prepared, self._num_kv_heads = prepared, len(share.kv)
        self._copies = torch.tensor(share.local_kv, device=prepared.problem.device) if share.expanded else None
        """where the kernel needs KV heads more than once: which"""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Forward:
        local = self.prepared.forward(*map(self.prepared.to_layout, (q, self._expand(k), self._expand(v))))
        return Forward(self.prepared.from_layout(local.out).detach(), saved=local if self.prepared.problem.needs_backward else None)

    def backward(self, saved: Forward, dout: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        dq, dk, dv = map(self.prepared.from_layout, self.prepared.backward(saved, self.prepared.to_layout(dout)))
        return dq, self._fold(dk), self._fold(dv)

    def _expand(self, x_TgD: torch.Tensor) -> torch.Tensor:
        return x_TgD if self._copies is None else x_TgD.index_select(1, self._copies)

    def _fold(self, grad: torch.Tensor) -> torch.Tensor:
        """Gradients of copied KV heads, summed in float32 over the copies of each."""
        if self._copies is None:
            return grad
        wide = grad.float()
        return wide.new_zeros(wide.shape[0], self._num_kv_heads, wide.shape[2]).index_add_(1, self._copies, wide).to(grad.dtype)


def _formula_bytes(problem: Problem, world: int) -> dict[str, float]:
    """The formula leaves out that more ranks than KV heads means N copies of KV heads in all: `formula_replicated_bytes` puts
    max(Hkv, N) for Hkv.
    """
    copied = replace(problem, num_kv_heads=max(problem.num_kv_heads, world))
    return {"formula_bytes": formula_bytes(problem, Mesh(1, world)), "formula_replicated_bytes": formula_bytes(copied, Mesh(1, world))}
