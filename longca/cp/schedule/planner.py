"""The planner: makes plans, chooses among shardings by estimated cost, and caches recent plans."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from longca.cp.partition.factory import partition_mask
from longca.cp.partition.load_balance import CANDIDATES, make_sharding, worth_trying
from longca.cp.partition.mask_partition import MaskPartition
from longca.cp.partition.sharding import Sharding
from longca.cp.schedule.cost import PlanCost, UnitCosts, cost_of, costs_of
from longca.cp.schedule.plan import Plan, Schedule
from longca.masks import Mask

BEST = "best"  # instead of a sharding's name: the cheapest of the candidates


@dataclass(frozen=True)
class ScoredPlan:
    """A plan with its estimated cost."""

    plan: Plan
    cost: PlanCost


class Planner:
    """Makes plans and caches recent ones by the digest of their mask, so that equal masks share one plan."""

    def __init__(self, costs: UnitCosts, candidates: Sequence[str] = CANDIDATES, kept: int = 32) -> None:
        """
        Args:
            costs: unit costs for the comparison of plans.
            candidates: names of candidate shardings; the first of equally cheap ones is chosen.
            kept: number of cached plans.
        """
        self.costs = costs
        self.candidates = tuple(candidates)
        self._max_kept = kept
        self._kept: OrderedDict[tuple, ScoredPlan] = OrderedDict()
        self._partitions: dict[tuple[str, int, str], MaskPartition] = {}
        """for the last mask and number of ranks, since strategies try several schedules in sequence; 40 MB
        for 96 ranks and 1000 documents"""

    def plan(self, mask: Mask, world: int, schedule: Schedule, sharding: str = BEST) -> Plan:
        """The new or cached plan of a mask.

        Args:
            world: ranks that split the sequence; in a hybrid, those of one ring.
            sharding: a name that `make_sharding` knows, or BEST.
        """
        return self.choice(mask, world, schedule, sharding).plan

    def choice(self, mask: Mask, world: int, schedule: Schedule, sharding: str = BEST) -> ScoredPlan:
        """`plan`, with its estimated cost."""
        key = mask.digest, world, schedule, sharding
        if key not in self._kept:
            only = [sharding] if sharding != BEST else None
            self._kept[key] = self.choices(mask, world, schedule, only)[0]
            if len(self._kept) > self._max_kept:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    def choices(
        self, mask: Mask, world: int, schedule: Schedule, names: Sequence[str] | None = None
    ) -> list[ScoredPlan]:
        """The plans on the shardings of these names, cheapest first. Default: all promising candidates."""
        if names is None:
            names = [name for name in self.candidates if worth_trying(name, mask)] or self.candidates
        plans = schedule.plans_of([self._partition(mask, world, name) for name in names])
        return sorted(
            map(ScoredPlan, plans, costs_of(plans, self.costs)), key=lambda choice: choice.cost.total_s
        )

    def choices_on(self, mask: Mask, sharding: Sharding, schedules: Sequence[Schedule]) -> list[ScoredPlan]:
        """The plans of these schedules on a given sharding, in their order. They are not cached."""
        partition = partition_mask(mask, sharding)
        plans = (schedule.plans_of([partition])[0] for schedule in schedules)
        return [ScoredPlan(plan, cost_of(plan, self.costs)) for plan in plans]

    def _partition(self, mask: Mask, world: int, name: str) -> MaskPartition:
        key = mask.digest, world, name
        if key not in self._partitions:
            self._partitions = {
                known: partition for known, partition in self._partitions.items() if known[:2] == key[:2]
            }
            self._partitions[key] = partition_mask(mask, make_sharding(name, mask, world))
        return self._partitions[key]
