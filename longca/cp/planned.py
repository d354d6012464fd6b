"""Planned strategies: a sub-class defines its mesh of ranks and its schedules, and the rest follows from the
plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from longca.cp.contract import HeadStrategy
from longca.cp.kernel_support import KernelSupport, rank_calls, step_traits, unknown_part
from longca.cp.partition.heads import HeadPlan, plan_heads
from longca.cp.partition.mesh import Mesh
from longca.cp.schedule.planner import Planner
from longca.cp.schedule.work_partition import WorkPartition, partition_heads, partition_on, unit_costs
from longca.cp.traffic_formula import formula_bytes

if TYPE_CHECKING:
    from longca.cp.comm.backend import Comm
    from longca.cp.contract import PreparedStrategy
    from longca.cp.partition.sharding import Sharding
    from longca.cp.schedule.cost import UnitCosts
    from longca.cp.schedule.head_chunking import ChunkWeights
    from longca.cp.schedule.plan import Plan, Schedule
    from longca.cp.schedule.planner import ScoredPlan
    from longca.kernels.contract import Kernel, Problem
    from longca.lab.studies.cell import CallSpec, Cell
    from longca.masks.mask import Mask
    from longca.masks.traits import Traits

GAIN_OF_SCHEDULE = 1.05  # least estimated speed-up over a simpler schedule


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

    def supports(self, cell: Cell, traits: Traits) -> str | None:
        return self._unfit_ranks(cell.call_spec, cell.world, traits)

    def refusal(self, cell: Cell, traits: Traits, kernel: Kernel, device_type: str) -> str | None:
        from longca.masks.build import cell_mask

        return self._refusal(lambda: cell_mask(cell), traits, cell.call_spec, cell.world, kernel, device_type)

    def refusal_with(self, mask: Mask, cell: Cell, kernel: Kernel, device_type: str) -> str | None:
        return self.refusal_of(mask, cell.call_spec, cell.world, kernel, device_type)

    def refusal_of(
        self, mask: Mask, call: CallSpec, world: int, kernel: Kernel, device_type: str
    ) -> str | None:
        return self._refusal(lambda: mask, mask.traits, call, world, kernel, device_type)

    def _refusal(
        self,
        mask: Callable[[], Mask],
        traits: Traits,
        call: CallSpec,
        world: int,
        kernel: Kernel,
        device_type: str,
    ) -> str | None:
        """The reason why not, or None. The mask is built only if its traits do not decide."""
        reason = kernel.in_parts(call, device_type) or self._unfit_ranks(call, world, traits)
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
        choices, misfits = [], []
        # in any order: the first supported plan decides, and the others are not made
        for choice in self._choices(mask(), call, world):
            choices.append(choice)
            misfits.append(support.misfit(choice.plan))
            if misfits[-1] is None:
                return None
        return misfits[_by_promise(choices)[0]]

    def _unfit_ranks(self, call: CallSpec, world: int, traits: Traits) -> str | None:
        try:
            self.schedules(self.mesh(world, call.num_kv_heads))
        except ValueError as error:
            return str(error)
        heads = self._heads(call, world)
        if all(heads.mask_groups(rank, traits.num_groups) is not None for rank in range(len(heads.ranks))):
            return None
        return (
            f"the mask differs among {traits.num_groups} head groups, and {len(heads.ranks)} ranks cannot "
            f"divide {call.num_kv_heads} "
            "KV heads so that each has whole groups or heads of one"
        )

    def local_calls(self, cell: Cell, traits: Traits) -> list[tuple[CallSpec, Traits]]:
        """The calls of all steps of all ranks. Block masks are expensive to build: for them a bound with
        blocks of any size is used."""
        call = cell.call_spec
        if traits.is_block_grid:
            return self._block_calls(call, cell.world, traits)
        from longca.masks.build import cell_mask

        return list(
            rank_calls(
                call,
                self._heads(call, cell.world),
                step_traits(self._plans(cell_mask(cell), call, cell.world)[0]),
            )
        )

    def _block_calls(self, call: CallSpec, world: int, traits: Traits) -> list[tuple[CallSpec, Traits]]:
        heads = self._heads(call, world)
        groups = (heads.mask_groups(rank, traits.num_groups) for rank in range(len(heads.ranks)))
        parts = (replace(unknown_part(traits), num_groups=len(part)) for part in groups if part is not None)
        return list(rank_calls(call, heads, parts))

    def prepare_work(
        self, problem: Problem, kernel: Kernel, comm: Comm, work: WorkPartition, planning_ms: float
    ) -> PreparedStrategy:
        from longca.cp.runtime.prepared import PreparedHeads, PreparedPlan

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
        return partition_on(mesh, plan, call, weights)

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
        plans, support = (
            self._plans(mask, call, world, sharding),
            self._support(call, world, kernel, device_type),
        )
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
        schedules, planner = self.schedules(mesh), self._planners.setdefault(costs, Planner(costs))
        if sharding is not None:
            yield from planner.choices_on(mask, sharding, schedules)
        else:
            yield from (planner.choice(mask, mesh.ring, schedule) for schedule in schedules)

    def _support(self, call: CallSpec, world: int, kernel: Kernel, device_type: str) -> KernelSupport:
        return KernelSupport(kernel, device_type, call, self._heads(call, world))

    def _heads(self, call: CallSpec, world: int) -> HeadPlan:
        return plan_heads(call.num_q_heads, call.num_kv_heads, self.mesh(world, call.num_kv_heads).heads)

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
