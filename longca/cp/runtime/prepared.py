"""Prepared strategies over a work partition: a plan that splits keys, or a split of heads over all ranks.

If a mesh splits both, all-to-alls within each head group collect all tokens of one plan rank for the rank's
heads, chunk by chunk. For each chunk the plan runs among the ranks with the same heads.

Shapes: L tokens of this rank, T of all; H query and G KV heads, of which a chunk has h and g on this rank; D
    head dim.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from longca.cp.contract import PreparedStrategy, TokenShard
from longca.cp.partition.mesh import Mesh, formula_bytes
from longca.cp.partition.sharding import even_ranges
from longca.cp.runtime.head_exchange import HeadExchange
from longca.cp.runtime.head_pipeline import HeadPipeline
from longca.cp.runtime.kernel_call import sum_of_costs
from longca.cp.runtime.plan_attention import PlanAttention
from longca.cp.schedule.work_partition import describe_chunks
from longca.kernels.contract import Forward

if TYPE_CHECKING:
    import torch

    from longca.cp.comm.backend import Comm
    from longca.cp.partition.mesh import RankHeads
    from longca.cp.schedule.work_partition import WorkPartition
    from longca.kernels.contract import Kernel, Prepared, Problem


class PreparedPlan(PreparedStrategy):
    """A strategy that splits keys, and optionally heads."""

    def __init__(
        self, problem: Problem, kernel: Kernel, comm: Comm, work: WorkPartition, planning_ms: float
    ) -> None:
        """
        Args:
            planning_ms: planning time of the work partition.
        """
        mesh, plan, chunks = work.mesh, work.plan, work.chunks
        super().__init__(problem, TokenShard(mesh.positions(plan.sharding, comm.rank)))
        ring_rank, number = mesh.of(comm.rank)
        # collective, so it precedes work in which a single rank may fail
        receive_buffers = comm.receive_buffers()
        exchange = None
        if mesh.heads > 1:
            exchange = HeadExchange(
                comm, mesh.group(comm.rank), mesh.tokens(plan.sharding, ring_rank), receive_buffers
            )
            exchange.reserve(chunks, problem)
        parts: dict[tuple[range, int, int], PlanAttention] = {}
        calls = []
        for chunk in chunks:
            heads, groups = chunk.heads.ranks[number], work.mask_groups(chunk, number)
            assert not heads.expanded, "the mesh divides KV heads evenly"
            key = groups, len(heads.q), len(heads.kv)
            if key not in parts:
                own = work.plan_of(groups)
                of_heads = replace(problem, num_q_heads=len(heads.q), num_kv_heads=len(heads.kv))
                parts[key] = PlanAttention(
                    own, ring_rank, list(mesh.ring_of(comm.rank)), comm, receive_buffers, of_heads
                )
            calls.append(parts[key])
        receive_buffers.allocate()
        for part in parts.values():
            part.prepare(kernel)
        self._attention: PlanAttention = calls[0]
        self._pipeline = (
            HeadPipeline(exchange, chunks, calls, problem.needs_backward) if exchange is not None else None
        )
        self._count(list(parts.values()), calls, planning_ms)
        self.notes = [
            f"{plan.schedule} of {mesh.ring}" + (f", heads among {mesh.heads}" if mesh.heads > 1 else ""),
            *self.notes,
        ]
        self.notes += filter(None, [comm.messages_note])
        if len(chunks) > 1:
            self.notes.insert(1, f"in chunks of {describe_chunks(chunks)}")

    def _count(self, parts: list[PlanAttention], calls: list[PlanAttention], planning_ms: float) -> None:
        """Fills in costs and notes.

        Args:
            parts: the distinct parts.
            calls: the part of each chunk.
        """
        prepared = [one for part in parts for one in part.steps.prepared]
        schedule_ms = planning_ms + sum(part.steps.masks_ms for part in parts)
        costs = sum_of_costs(prepared)
        areas = np.sum([part.plan.step_areas.sum(axis=1) for part in calls], axis=0)
        self.costs |= costs | {
            "schedule_ms": schedule_ms,
            "plan_ms": schedule_ms + costs.get("plan_ms", 0.0),
            "num_kernel_calls": float(sum(len(part.steps.steps) for part in calls)),
            "num_key_buffers": float(max(part.num_key_buffers for part in parts)),
            "area_imbalance": float(areas.max() * len(areas) / max(areas.sum(), 1)),
        }
        self.notes += dict.fromkeys(
            [f"tokens: {parts[0].plan.sharding.name}", *(note for one in prepared for note in one.notes)]
        )

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Forward:
        q, k, v = (x.detach() for x in (q, k, v))
        return self._attention.forward(q, k, v) if self._pipeline is None else self._pipeline.forward(q, k, v)

    def backward(
        self, forward: Forward, dout: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return (self._attention if self._pipeline is None else self._pipeline).backward(
            forward.saved, dout.detach()
        )


class PreparedHeads(PreparedStrategy):
    """A strategy that splits only heads: each rank runs the whole sequence by itself, chunk by chunk."""

    def __init__(self, problem: Problem, kernel: Kernel, comm: Comm, work: WorkPartition) -> None:
        """
        Args:
            work: a work partition of heads only.
        """
        tokens = even_ranges(problem.mask.seqlen_q, comm.world)
        mine = tokens[comm.rank]
        super().__init__(problem, TokenShard(np.arange(mine.start, mine.stop, dtype=np.int64)))
        receive_buffers, chunks = comm.receive_buffers(), work.chunks
        exchange = HeadExchange(comm, range(comm.world), tokens, receive_buffers)
        exchange.reserve(chunks, problem)
        receive_buffers.allocate()
        calls = self._prepare_calls(work, problem, kernel, comm.rank)
        self._pipeline = HeadPipeline(exchange, chunks, calls, problem.needs_backward)
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

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Forward:
        return self._pipeline.forward(q.detach(), k.detach(), v.detach())

    def backward(
        self, forward: Forward, dout: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self._pipeline.backward(forward.saved, dout.detach())


class HeadCall:
    """A kernel on all tokens and some heads: T × h × D and T × g × D, with heads as received by the rank."""

    def __init__(self, prepared: Prepared, heads: RankHeads) -> None:
        import torch

        from longca.ops.transfer import on_device

        self.prepared, self._num_kv_heads = prepared, len(heads.kv)
        self._copies = (
            on_device([torch.tensor(heads.local_kv)], prepared.problem.device)[0] if heads.expanded else None
        )
        """the received head for each KV head of the kernel, if the kernel repeats some"""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Forward:
        local = self.prepared.forward(*map(self.prepared.to_layout, (q, self._expand(k), self._expand(v))))
        return Forward(
            self.prepared.from_layout(local.out).detach(),
            saved=local if self.prepared.problem.needs_backward else None,
        )

    def backward(self, saved: Forward, dout: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        dq, dk, dv = map(
            self.prepared.from_layout, self.prepared.backward(saved, self.prepared.to_layout(dout))
        )
        return dq, self._fold(dk), self._fold(dv)

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
