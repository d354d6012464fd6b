"""A plan at work on one rank: keys arrive, kernels run, results add up. What all strategies that divide the keys share.

Where ranks divide heads too, all-to-alls inside each group bring all tokens of one rank of the plan together for the rank's heads, and
the plan runs on these among the ranks with the same heads.

Shapes: L tokens of this rank; T of its rank of the plan, of all of a group; H, G, D as ever; h and g heads of this rank.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from longca.cp.contract import PreparedStrategy, Shard
from longca.cp.exchange import HeadExchange, join_heads
from longca.cp.heads import plan_heads
from longca.cp.homecoming import Homecoming
from longca.cp.local_steps import LocalSteps
from longca.cp.transport import Transport
from longca.kernels.contract import Forward

if TYPE_CHECKING:
    import torch

    from longca.cp.comm import Comm
    from longca.cp.mesh import Mesh
    from longca.cp.plan import Plan
    from longca.kernels.contract import Kernel, Problem


class PreparedPlan(PreparedStrategy):
    def __init__(self, problem: Problem, kernel: Kernel, comm: Comm, mesh: Mesh, plan: Plan, planning_ms: float) -> None:
        """
        Args:
            plan: for the heads of this rank.
            planning_ms: what making the plan has taken.
        """
        super().__init__(problem, Shard(mesh.positions(plan.placement, comm.rank)))
        ring_rank, number = mesh.of(comm.rank)
        ring = list(mesh.ring_of(comm.rank))
        # what all ranks must do together comes before anything that one of them may fail at
        self._heads = _Heads(problem, comm, mesh, plan, ring_rank) if mesh.heads > 1 else None
        self._transport = Transport(plan, ring_rank, ring, comm)
        self._homecoming = Homecoming(plan, ring_rank, ring, comm) if problem.needs_backward else None
        self._num_steps = plan.num_steps
        share = plan_heads(problem.num_q_heads, problem.num_kv_heads, mesh.heads).ranks[number]
        local = replace(problem, num_q_heads=len(share.q), num_kv_heads=len(share.kv))
        self._steps = LocalSteps(plan, ring_rank, local, kernel)
        schedule_ms = planning_ms + self._steps.cutting_ms
        self.costs |= self._steps.costs | {
            "schedule_ms": schedule_ms, "plan_ms": schedule_ms + self._steps.costs.get("plan_ms", 0.0),
            "num_kernel_calls": float(len(self._steps.steps)), "num_key_buffers": float(len(self._transport.route.buffer_keys)),
            "area_imbalance": float(plan.step_areas.sum(axis=1).max() * plan.world / max(plan.step_areas.sum(), 1))}
        self.notes += [f"tokens: {plan.placement.name}", *self._steps.notes]

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Forward:
        import torch

        with torch.no_grad():
            if self._heads is not None:
                q, k, v = self._heads.to_heads(q, k, v)
            journey, total = self._transport.start(k, v), self._steps.running(q)
            for number in range(self._num_steps):
                if number in self._steps.steps:
                    self._steps.forward(number, total, *journey.keys(number))
                journey.computed(number)
                total.add()
            journey.finish()
            out, lse = total.result()
            saved = (q, k, v, out, lse) if self.problem.needs_backward else None
            if self._heads is None:
                return Forward(out, lse, saved)
            return Forward(self._heads.to_tokens(out)[0], saved=saved)  # no LSE: it is of this rank's heads

    def backward(self, forward: Forward, dout: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Keys go round again, and their gradients straight home."""
        import torch

        assert self._homecoming is not None
        q, k, v, out, lse = forward.saved
        with torch.no_grad():
            if self._heads is not None:
                (dout,) = self._heads.to_heads(dout)
            journey, home = self._transport.start(k, v), self._homecoming.start(k, v)
            total_dq = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
            for number in range(self._num_steps):
                dq = dk = dv = None
                if number in self._steps.steps:
                    dq, dk, dv = self._steps.backward(number, q, *journey.keys(number), out, lse, dout)
                journey.computed(number)
                if number:
                    home.post(number, dk, dv)
                elif dk is not None and dv is not None:
                    home.add(dk, dv)
                if dq is not None:
                    total_dq[self._steps.rows(number)].add_(dq)
            journey.finish()
            grads = (total_dq.to(q.dtype), *home.finish())
            if self._heads is None:
                return grads
            dq, dk, dv = self._heads.to_tokens(*grads)
            return dq, dk, dv


class _Heads:
    """The step between "my tokens, all heads" and "all tokens of my group, my heads"."""

    def __init__(self, problem: Problem, comm: Comm, mesh: Mesh, plan: Plan, ring_rank: int) -> None:
        team = comm.team([mesh.group(first) for first in range(0, mesh.world, mesh.heads)])
        self._exchange = HeadExchange(team, mesh.tokens(plan.placement, ring_rank), problem.head_dim)
        heads = plan_heads(problem.num_q_heads, problem.num_kv_heads, mesh.heads)
        assert not any(share.expanded for share in heads.ranks), "the mesh divides KV heads evenly"
        self._q, self._kv = heads.q, heads.kv

    def to_heads(self, q_LHD: torch.Tensor, *kv_LGD: torch.Tensor) -> list[torch.Tensor]:
        """One of query heads, and any number of KV heads: T × h × D and T × g × D."""
        return [x.contiguous() for x in self._exchange.to_heads((q_LHD, *kv_LGD), (self._q, *[self._kv] * len(kv_LGD)))]

    def to_tokens(self, q_ThD: torch.Tensor, *kv_TgD: torch.Tensor) -> list[torch.Tensor]:
        """Back."""
        shares = (self._q, *[self._kv] * len(kv_TgD))
        blocks = self._exchange.to_tokens((q_ThD, *kv_TgD), shares)
        return [join_heads(of_ranks, share) for of_ranks, share in zip(blocks, shares, strict=True)]
