"""A plan at work: what all strategies that divide the keys share.

Where ranks divide heads too, all-to-alls inside each group bring all tokens of one rank of the plan together for the rank's heads, a
chunk of these after another, and for each chunk the plan runs among the ranks with the same heads.

Shapes: L tokens of this rank; H, G, D as ever.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from longca.cp.contract import PreparedStrategy, TokenShard
from longca.cp.runtime.head_exchange import HeadExchange
from longca.cp.runtime.head_pipeline import HeadPipeline
from longca.cp.runtime.kernel_call import sum_of_costs
from longca.cp.runtime.plan_attention import PlanAttention
from longca.cp.schedule.head_chunking import describe_chunks
from longca.kernels.contract import Forward

if TYPE_CHECKING:
    import torch

    from longca.cp.comm.process_group import Comm
    from longca.cp.schedule.work_partition import WorkPartition
    from longca.kernels.contract import Kernel, Problem


class PreparedPlan(PreparedStrategy):
    def __init__(self, problem: Problem, kernel: Kernel, comm: Comm, division: WorkPartition, planning_ms: float) -> None:
        """
        Args:
            planning_ms: what making the division has taken.
        """
        mesh, plan, chunks = division.mesh, division.plan, division.chunks
        super().__init__(problem, TokenShard(mesh.positions(plan.sharding, comm.rank)))
        ring_rank, number = mesh.of(comm.rank)
        # what all ranks must do together comes before anything that one of them may fail at
        landings = comm.landings()
        exchange = None
        if mesh.heads > 1:
            exchange = HeadExchange(comm, mesh.group(comm.rank), mesh.tokens(plan.sharding, ring_rank), landings)
            exchange.reserve(chunks, problem)
        parts: dict[tuple[range, int, int], PlanAttention] = {}
        calls = []
        for chunk in chunks:
            share, groups = chunk.heads.ranks[number], division.mask_groups(chunk, number)
            assert not share.expanded, "the mesh divides KV heads evenly"
            key = groups, len(share.q), len(share.kv)
            if key not in parts:
                own = division.plan_of(groups)
                of_heads = replace(problem, num_q_heads=len(share.q), num_kv_heads=len(share.kv))
                parts[key] = PlanAttention(own, ring_rank, list(mesh.ring_of(comm.rank)), comm, landings, of_heads)
            calls.append(parts[key])
        landings.settle()
        for part in parts.values():
            part.prepare(kernel)
        self._attention: PlanAttention = calls[0]
        self._pipeline = HeadPipeline(exchange, chunks, calls, problem.needs_backward) if exchange is not None else None
        self._count(list(parts.values()), calls, planning_ms)
        self.notes = [f"{plan.schedule} of {mesh.ring}" + (f", heads among {mesh.heads}" if mesh.heads > 1 else ""), *self.notes]
        self.notes += filter(None, [comm.messages_note])
        if len(chunks) > 1:
            self.notes.insert(1, f"in chunks of {describe_chunks(chunks)}")

    def _count(self, parts: list[PlanAttention], calls: list[PlanAttention], planning_ms: float) -> None:
        prepared = [one for part in parts for one in part.steps.prepared]
        schedule_ms = planning_ms + sum(part.steps.cutting_ms for part in parts)
        costs = sum_of_costs(prepared)
        areas = np.sum([part.plan.step_areas.sum(axis=1) for part in calls], axis=0)
        self.costs |= costs | {
            "schedule_ms": schedule_ms, "plan_ms": schedule_ms + costs.get("plan_ms", 0.0),
            "num_kernel_calls": float(sum(len(part.steps.steps) for part in calls)),
            "num_key_buffers": float(max(part.num_key_buffers for part in parts)),
            "area_imbalance": float(areas.max() * len(areas) / max(areas.sum(), 1))}
        self.notes += dict.fromkeys([f"tokens: {parts[0].plan.sharding.name}", *(note for one in prepared for note in one.notes)])

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Forward:
        q, k, v = (x.detach() for x in (q, k, v))
        return self._attention.forward(q, k, v) if self._pipeline is None else self._pipeline.forward(q, k, v)

    def backward(self, forward: Forward, dout: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return (self._attention if self._pipeline is None else self._pipeline).backward(forward.saved, dout.detach())
