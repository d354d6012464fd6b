"""Attention of one rank of a plan: keys arrive, kernels run, results are accumulated.

Work of each step n, in the order in which the host posts it:

    forward                                         backward
    wait for the keys of n                          wait for the keys of n
    kernel                                          kernel
    post transfers of keys that are due after n     post transfers of keys that are due after n
    add the result to (out, LSE)                    send dk and dv of n, add those received for n − 1
                                                    add dq

Transfers are posted before additions, which are elementwise work: a copy kernel of NCCL finds free
multiprocessors during them even if the next attention kernel occupies all.

If a mesh splits heads as well as keys (`PreparedPlan`), all-to-alls within each head group collect all tokens
of one plan rank for the rank's heads, chunk by chunk. For each chunk the plan runs among the ranks with the
same heads.

Shapes: L queries and keys of the rank; H query heads, G KV heads, D head dim; n queries and m keys of one step.
"""  # noqa: E501

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from longca.cp.contract import PreparedByHeads, TokenShard
from longca.cp.runtime.accumulate import (
    DqAccumulator,
    LocalCall,
    OutputAccumulator,
    contributions_of,
    sum_of_costs,
)
from longca.cp.runtime.backward_at_once import BackwardAtOnce
from longca.cp.runtime.dkv_reduce import DkvReduce
from longca.cp.runtime.head_exchange import HeadExchange
from longca.cp.runtime.head_pipeline import HeadPipeline
from longca.cp.runtime.kv_exchange import KvExchange
from longca.cp.schedule.planner import step_masks
from longca.cp.schedule.work_partition import describe_chunks
from longca.kernels import Forward

if TYPE_CHECKING:
    import torch

    from longca.cp.comm.backend import Comm
    from longca.cp.comm.p2p import ReceiveBuffers
    from longca.cp.contract import Grads
    from longca.cp.runtime.dkv_reduce import DkvReduceInFlight
    from longca.cp.runtime.kv_exchange import KvExchangeInFlight
    from longca.cp.schedule.plan import Plan
    from longca.cp.schedule.work_partition import WorkPartition
    from longca.kernels import Contribution, Kernel, Prepared, Problem


@dataclass(frozen=True)
class LocalStep:
    """A kernel call for the queries start..end, which are all queries that see keys of the step."""

    start: int
    end: int
    call: LocalCall
    contributions: tuple[Contribution, ...] = ()
    """row ranges for a kernel that merges, relative to `start`; empty for others"""

    @property
    def rows(self) -> slice:
        return slice(self.start, self.end)


class LocalSteps:
    """The kernel calls of one rank of a plan. Steps with equal masks share a prepared kernel."""

    def __init__(self, plan: Plan, rank: int, problem: Problem, kernel: Kernel) -> None:
        start_s = time.perf_counter()
        parts = step_masks(plan, rank, merging=kernel.merges)
        self._contributions = (
            contributions_of(parts, int(plan.sharding.num_tokens[rank]))
            if kernel.merges and len(parts) > 1
            else None
        )
        self.masks_ms = (time.perf_counter() - start_s) * 1e3
        """time to build the masks of the steps"""
        masks = {mask.digest: mask for _, _, mask in parts.values()}
        calls = {digest: LocalCall(kernel, replace(problem, mask=mask)) for digest, mask in masks.items()}
        self.steps = {
            number: LocalStep(
                start,
                end,
                calls[mask.digest],
                self._contributions.of_step[number] if self._contributions else (),
            )
            for number, (start, end, mask) in parts.items()
        }
        for step in self.steps.values():
            step.call.prepared.expect(step.contributions)
        self.last = max(self.steps, default=None)
        self.prepared = [call.prepared for call in calls.values()]

    def output_accumulator(self, q_LHD: torch.Tensor) -> OutputAccumulator:
        return OutputAccumulator(q_LHD, len(self.steps), self._contributions)

    def dq_accumulator(self, q_LHD: torch.Tensor) -> DqAccumulator:
        return DqAccumulator(q_LHD, self._contributions)

    def forward(
        self, number: int, total: OutputAccumulator, k_mGD: torch.Tensor, v_mGD: torch.Tensor
    ) -> None:
        """Runs the step's kernel. Its result is pending in `total` until `OutputAccumulator.add`, unless the
        kernel merges."""
        step = self.steps[number]
        if step.contributions:
            total.merge_onto(step.rows, step.call, step.contributions, k_mGD, v_mGD)
        else:
            total.waiting = (
                step.rows,
                step.call,
                step.call.forward_in_layout(total.q_LHD[step.rows], k_mGD, v_mGD),
            )

    def backward(
        self,
        number: int,
        total: DqAccumulator,
        k_mGD: torch.Tensor,
        v_mGD: torch.Tensor,
        out_LHD: torch.Tensor,
        lse_LH: torch.Tensor,
        dout_LHD: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(dk_mGD, dv_mGD) of a step, from the output and LSE over all keys. Its dq is pending in `total`,
        unless the kernel merges."""
        step = self.steps[number]
        given: Any = (
            total.q_LHD[step.rows],
            k_mGD,
            v_mGD,
            *(x[step.rows] for x in (out_LHD, lse_LH, dout_LHD)),
        )
        if step.contributions:
            return total.add_onto(step.rows, step.call, step.contributions, given)
        dq, dk, dv = step.call.backward(*given)
        total.waiting = step.rows, dq, number == self.last
        return dk, dv


class PlanAttention:
    """The execution of a plan on one rank, for the rank's heads.

    Args:
        plan: plan for these heads.
        rank: rank of the plan.
        ranks: ranks of the job, in the order of the plan.
        problem: problem of these heads.
        backward_at_once: as in `WorkPartition`.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        ranks: Sequence[int],
        comm: Comm,
        receive_buffers: ReceiveBuffers,
        problem: Problem,
        *,
        backward_at_once: bool = False,
    ) -> None:
        self.plan = plan
        self._rank = rank
        self._problem = problem
        self._backward_at_once = backward_at_once
        self._at_once: BackwardAtOnce | None = None
        row_bytes = problem.num_kv_heads * problem.head_dim * problem.dtype.itemsize
        self._kv_exchange = KvExchange(plan, rank, ranks, comm, receive_buffers, row_bytes)
        self._dkv_reduce = (
            DkvReduce(plan, rank, ranks, comm, receive_buffers, row_bytes) if problem.needs_backward else None
        )
        self.num_key_buffers = len(self._kv_exchange.schedule.buffer_keys)

    def prepare(self, kernel: Kernel) -> None:
        """Prepares the kernel calls. It is a separate method, since a single rank may fail here, while
        earlier steps are collective."""
        of_steps = self._problem
        if self._backward_at_once:
            self._at_once = BackwardAtOnce(self.plan, self._rank, self._problem, kernel)
            of_steps = replace(self._problem, needs_backward=False)
        self.steps = LocalSteps(self.plan, self._rank, of_steps, kernel)

    @property
    def prepared(self) -> list[Prepared]:
        """All prepared kernels."""
        return self.steps.prepared + ([self._at_once.call.prepared] if self._at_once is not None else [])

    @property
    def masks_ms(self) -> float:
        """The time to build the masks of their calls."""
        return self.steps.masks_ms + (self._at_once.mask_ms if self._at_once is not None else 0.0)

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor | None
    ) -> Forward:
        import torch

        from longca.ops import join_sinks

        with torch.no_grad():
            exchange = self._kv_exchange.start(k, v)
            total = self.steps.output_accumulator(q)
            for number in range(self.plan.num_steps):
                if number in self.steps.steps:
                    self.steps.forward(number, total, *exchange.wait_keys(number))
                exchange.post_after(number)
                total.add()
            exchange.finish()
            out, lse = total.result()
            if sinks is not None:
                out, lse = join_sinks(out, lse, sinks)
            return Forward(out, lse, (q, k, v, out, lse, sinks) if self._problem.needs_backward else None)

    def backward(self, saved: Any, dout: torch.Tensor) -> Grads:
        """(dq, dk, dv, that of the sinks). Keys are exchanged again, and their gradients are sent directly to
        their owner."""
        import torch

        assert self._dkv_reduce is not None
        q, k, v, out, lse, _ = saved
        with torch.no_grad():
            exchange = self._kv_exchange.start(k, v)
            reduce = self._dkv_reduce.start(k, v)
            if self._at_once is not None:
                dq = self._at_once.run(exchange, reduce, (k, v), q, out, lse, dout)
                return self._finished(exchange, reduce, dq, saved, dout)
            total_dq = self.steps.dq_accumulator(q)
            for number in range(self.plan.num_steps):
                dk = dv = None
                if number in self.steps.steps:
                    dk, dv = self.steps.backward(
                        number, total_dq, *exchange.wait_keys(number), out, lse, dout
                    )
                exchange.post_after(number)
                if dk is not None and dv is not None:
                    own = self.plan.num_own_kv(self._rank, number)
                    reduce.add_own(dk[:own], dv[:own])
                    dk = dk[own:]
                    dv = dv[own:]
                if number:
                    reduce.post(number, dk, dv)
                total_dq.add()
            return self._finished(exchange, reduce, total_dq.result(), saved, dout)

    def _finished(
        self,
        exchange: KvExchangeInFlight,
        reduce: DkvReduceInFlight,
        dq: torch.Tensor,
        saved: Any,
        dout: torch.Tensor,
    ) -> Grads:
        from longca.ops import sinks_gradient

        *_, out, lse, sinks = saved
        exchange.finish()
        dsinks = None if sinks is None else sinks_gradient(out, lse, dout, None, sinks)
        return dq, *reduce.finish(), dsinks


class PreparedPlan(PreparedByHeads):
    """A strategy that splits keys, and optionally heads."""

    def __init__(
        self, problem: Problem, kernel: Kernel, comm: Comm, work: WorkPartition, planning_ms: float
    ) -> None:
        """
        Args:
            planning_ms: planning time of the work partition.
        """
        mesh = work.mesh
        plan = work.plan
        chunks = work.chunks
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
            heads = chunk.heads.ranks[number]
            groups = work.mask_groups(chunk, number)
            assert not heads.expanded, "the mesh divides KV heads evenly"
            key = groups, len(heads.q), len(heads.kv)
            if key not in parts:
                own = work.plan_of(groups)
                of_heads = replace(problem, num_q_heads=len(heads.q), num_kv_heads=len(heads.kv))
                parts[key] = PlanAttention(
                    own,
                    ring_rank,
                    list(mesh.ring_of(comm.rank)),
                    comm,
                    receive_buffers,
                    of_heads,
                    backward_at_once=work.backward_at_once,
                )
            calls.append(parts[key])
        receive_buffers.allocate()
        for part in parts.values():
            part.prepare(kernel)
        self._attention = (
            HeadPipeline(exchange, chunks, calls, problem.needs_backward)
            if exchange is not None
            else calls[0]
        )
        self._count(list(parts.values()), calls, planning_ms)
        self.notes = [
            f"{plan.schedule} of {mesh.ring}" + (f", heads among {mesh.heads}" if mesh.heads > 1 else ""),
            *self.notes,
        ]
        if work.backward_at_once:
            self.notes.append("backward with all keys in one call")
        self.notes += filter(None, [comm.messages_note])
        if len(chunks) > 1:
            self.notes.insert(1, f"in chunks of {describe_chunks(chunks)}")

    def _count(self, parts: list[PlanAttention], calls: list[PlanAttention], planning_ms: float) -> None:
        """Fills in costs and notes.

        Args:
            parts: the distinct parts.
            calls: the part of each chunk.
        """
        prepared = [one for part in parts for one in part.prepared]
        schedule_ms = planning_ms + sum(part.masks_ms for part in parts)
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
