"""Planned strategies: a sub-class defines its mesh of ranks and its schedules, and the rest follows from the
plan.

A planned strategy makes one kernel call in each step of each rank, each with its own mask. Building all of
these masks would take long with many ranks. So kernels that support every band mask are not checked for
single steps, and other kernels are checked for MAX_PROBED steps of MAX_PROBED ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from longca.cp.contract import HeadStrategy, unfit_lengths
from longca.cp.partition.mesh import HeadPlan, Mesh, formula_bytes, plan_heads
from longca.cp.schedule.keys_at_once import computes_at_once
from longca.cp.schedule.memory import buffer_bytes
from longca.cp.schedule.planner import Planner, active_rows
from longca.cp.schedule.work_partition import WorkPartition, partition_heads, partition_on, unit_costs
from longca.masks import whole_mask

if TYPE_CHECKING:
    from longca.core import Answer, CallSpec
    from longca.cp.comm.backend import Comm
    from longca.cp.contract import PreparedStrategy
    from longca.cp.partition.mesh import ChunkWeights
    from longca.cp.partition.sharding import Sharding
    from longca.cp.schedule.plan import Plan, Schedule
    from longca.cp.schedule.planner import ScoredPlan, UnitCosts
    from longca.kernels import Kernel, Problem
    from longca.masks import LazyMask, Mask, Traits

GAIN_OF_SCHEDULE = 1.05  # least estimated speed-up over a simpler schedule
MAX_PROBED = 8  # checked ranks, and checked steps of each rank, evenly spaced
ANY_NUMBER = 1 << 20  # number of intervals in a row or column beyond any mask

T = TypeVar("T")


class PlannedStrategy(HeadStrategy):
    """A strategy defined by a mesh and schedules. Sub-classes define `mesh` and `schedules`."""

    def mesh(self, world: int, num_kv_heads: int) -> Mesh:
        """The mesh of ranks. Ranks of a head group must get whole KV heads. Raises ValueError if parameters
        do not fit these numbers."""
        return Mesh(world)

    def schedules(self, mesh: Mesh) -> Sequence[Schedule]:
        """The candidate schedules, the simplest first. Raises ValueError if parameters do not fit this
        mesh."""
        raise NotImplementedError

    def refusal(
        self, mask: Mask | LazyMask, call: CallSpec, world: int, kernel: Kernel, device_type: str
    ) -> Answer:
        traits = mask.traits
        reason = (
            unfit_lengths(traits)
            or kernel.in_parts(call, device_type)
            or self.unfit_ranks(call, world)
            or self._unfit_groups(call, world, traits)
        )
        if reason is not None:
            return reason
        support = self._support(call, world, kernel, device_type)
        if support.does_all_bands(traits):
            return None
        if traits.is_block_grid:
            reasons = (
                kernel.supports(local, known, device_type)
                for local, known in self._block_calls(call, world, traits)
            )
            return next(filter(None, reasons), None)
        choices = []
        misfits = []
        # in any order: the first supported plan decides, and the others are not made
        for choice in self._choices(whole_mask(mask), call, world):
            choices.append(choice)
            misfits.append(support.misfit(choice.plan))
            if misfits[-1] is None:
                return None
        return misfits[_by_promise(choices)[0]]

    def unfit_ranks(self, call: CallSpec, world: int) -> Answer:
        try:
            self.schedules(self.mesh(world, call.num_kv_heads))
        except ValueError as error:
            return str(error)
        return None

    def _unfit_groups(self, call: CallSpec, world: int, traits: Traits) -> Answer:
        heads = self._heads(call, world)
        if all(heads.mask_groups(rank, traits.num_groups) is not None for rank in range(len(heads.ranks))):
            return None
        return (
            f"the mask differs among {traits.num_groups} head groups, and {len(heads.ranks)} ranks cannot "
            f"divide {call.num_kv_heads} "
            "KV heads so that each has whole groups or heads of one"
        )

    def _block_calls(self, call: CallSpec, world: int, traits: Traits) -> list[tuple[CallSpec, Traits]]:
        """Bounds on the calls of all ranks under a block mask, whose parts are expensive to build: blocks of
        any size."""
        heads = self._heads(call, world)
        groups = (heads.mask_groups(rank, traits.num_groups) for rank in range(len(heads.ranks)))
        parts = (replace(unknown_part(traits), num_groups=len(part)) for part in groups if part is not None)
        return list(rank_calls(call, heads, parts))

    def buffer_bytes(
        self, mask: Mask | LazyMask, call: CallSpec, world: int, kernel: Kernel, device_type: str
    ) -> int:
        return buffer_bytes(
            self.partition_call(whole_mask(mask), call, world, kernel, device_type), call, kernel
        )

    def prepare_work(
        self, problem: Problem, kernel: Kernel, comm: Comm, work: WorkPartition, planning_ms: float
    ) -> PreparedStrategy:
        from longca.cp.runtime.head_pipeline import PreparedHeads
        from longca.cp.runtime.plan_attention import PreparedPlan

        if work.heads_only:
            prepared = PreparedHeads(problem, kernel, comm, work)
            prepared.notes.insert(0, f"heads among {work.mesh.heads}")
            return prepared
        prepared = PreparedPlan(problem, kernel, comm, work, planning_ms)
        prepared.costs["formula_bytes"] = formula_bytes(problem, work.mesh)
        return prepared

    def partition_call(
        self,
        mask: Mask,
        call: CallSpec,
        world: int,
        kernel: Kernel,
        device_type: str,
        weights: ChunkWeights | None = None,
        sharding: Sharding | None = None,
    ) -> WorkPartition:
        mesh = self.mesh(world, call.num_kv_heads)
        if mesh.ring == 1 and mesh.heads > 1:
            return partition_heads(mask, call, world, weights)
        plan = self._plan_for(mask, call, world, kernel, device_type, sharding)
        work = partition_on(mesh, plan, call, weights)
        at_once = call.direction == "bwd" and mesh.heads == 1 and computes_at_once(plan, call, kernel)
        return replace(work, backward_at_once=True) if at_once else work

    def _plan_for(
        self,
        mask: Mask,
        call: CallSpec,
        world: int,
        kernel: Kernel,
        device_type: str,
        sharding: Sharding | None = None,
    ) -> Plan:
        """The estimated fastest plan whose steps the kernel supports. It is the same on all ranks."""
        plans = self._plans(mask, call, world, sharding)
        support = self._support(call, world, kernel, device_type)
        if mask.grid is not None or support.does_all_bands(mask.traits):
            return plans[0]
        return next((plan for plan in plans if support.misfit(plan) is None), plans[0])

    def _plans(self, mask: Mask, call: CallSpec, world: int, sharding: Sharding | None = None) -> list[Plan]:
        """One plan for each schedule, the most promising first.

        Args:
            sharding: sharding of all plans. None: the estimated fastest one for each schedule.
        """
        choices = list(self._choices(mask, call, world, sharding))
        return [choices[number].plan for number in _by_promise(choices)]

    def _choices(
        self, mask: Mask, call: CallSpec, world: int, sharding: Sharding | None = None
    ) -> Iterator[ScoredPlan]:
        """The plan of each schedule, the simplest first, with shardings as in `_plans`. Each is made on
        demand."""
        mesh = self.mesh(world, call.num_kv_heads)
        costs = unit_costs(call, mesh, mask)
        schedules = self.schedules(mesh)
        planner = self._planner_of(costs)
        if sharding is not None:
            yield from planner.choices_on(mask, sharding, schedules)
        else:
            yield from (planner.choice(mask, mesh.ring, schedule) for schedule in schedules)

    def _support(self, call: CallSpec, world: int, kernel: Kernel, device_type: str) -> KernelSupport:
        return KernelSupport(kernel, device_type, call, self._heads(call, world))

    def _heads(self, call: CallSpec, world: int) -> HeadPlan:
        return plan_heads(call.num_q_heads, call.num_kv_heads, self.mesh(world, call.num_kv_heads).heads)

    def _planner_of(self, costs: UnitCosts) -> Planner:
        """The planner of these costs. All planners share the partitions of masks."""
        if costs not in self._planners:
            other = next(iter(self._planners.values()), None)
            self._planners[costs] = Planner(costs, partitions=other and other.partitions)
        return self._planners[costs]

    def share_plans(self, plans: dict[UnitCosts, Planner]) -> None:
        self._planners = plans

    @cached_property
    def _planners(self) -> dict[UnitCosts, Planner]:
        return {}


def _by_promise(choices: Sequence[ScoredPlan]) -> list[int]:
    """Indices of plans, the most promising first; plans are given with the simplest schedule first."""
    return sorted(
        range(len(choices)), key=lambda number: choices[number].cost.total_s * GAIN_OF_SCHEDULE**number
    )


@dataclass(frozen=True)
class KernelSupport:
    """One kernel, checked for the calls of ranks that split the heads of `call` by `heads`."""

    kernel: Kernel
    device_type: str
    call: CallSpec
    """of the whole problem, with all its heads"""
    heads: HeadPlan

    def does_all_bands(self, traits: Traits) -> bool:
        """True if the kernel supports any band mask, so that steps need no check. False for block masks."""
        if traits.is_block_grid:
            return False
        return (
            self._refusal(
                [replace(unknown_part(traits), max_row_intervals=ANY_NUMBER, max_col_intervals=ANY_NUMBER)]
            )
            is None
        )

    def misfit(self, plan: Plan) -> Answer:
        """The reason why the kernel does not support some step of a plan; None if it supports all."""
        return self._refusal(step_traits(plan))

    def _refusal(self, traits: Iterable[Traits]) -> Answer:
        reasons = (
            self.kernel.supports(call, known, self.device_type)
            for call, known in rank_calls(self.call, self.heads, traits)
        )
        return next(filter(None, reasons), None)


def rank_calls(
    call: CallSpec, heads: HeadPlan, traits: Iterable[Traits]
) -> Iterator[tuple[CallSpec, Traits]]:
    """The distinct calls of ranks under masks with these traits, with the heads of each rank."""
    shares = sorted({(len(share.q), len(share.kv)) for share in heads.ranks})
    seen: set[Traits] = set()
    for known in traits:
        if known in seen:
            continue
        seen.add(known)
        for num_q_heads, num_kv_heads in shares:
            yield replace(call, num_q_heads=num_q_heads, num_kv_heads=num_kv_heads), known


def step_traits(plan: Plan) -> Iterator[Traits]:
    """Traits of the masks of a plan's steps, for at most MAX_PROBED ranks and steps. Full masks of one shape
    have one entry."""
    full: set[tuple[int, int]] = set()
    for rank in _probed(range(plan.world)):
        for number in _probed(plan.step_numbers(rank)):
            step = plan.step(rank, number)
            if step.is_full:
                shape = step.num_rows, step.num_keys
                if shape in full:
                    continue
                full.add(shape)
            yield active_rows(step)[2].traits


def unknown_part(traits: Traits) -> Traits:
    """Bounds on the traits of an unknown part of a mask."""
    return replace(
        traits, full=False, causal=False, num_segments=0, window=None, block_size=None, empty_rows=True,
        tail_window=None,
    )  # fmt: skip


def _probed(items: Sequence[T]) -> list[T]:
    """All items, or MAX_PROBED evenly spaced ones, including the first and the last."""
    places = np.linspace(0, len(items) - 1, min(len(items), MAX_PROBED)).astype(int)
    return [items[index] for index in places.tolist()]
