"""Plans, made once and kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from longca.cp.partition.load_balance import CANDIDATES, place, worth_trying
from longca.cp.partition.mask_partition import MaskPartition, partition_mask
from longca.cp.schedule.cost import PlanCost, Rates, cost_of
from longca.cp.schedule.plan import Gather, Plan, Ring
from longca.masks.mask import Mask

BEST = "best"


@dataclass(frozen=True)
class Choice:
    plan: Plan
    cost: PlanCost


class Planner:
    """Makes plans and keeps the last ones by the digest of their mask: equal masks have one plan."""

    def __init__(self, rates: Rates, candidates: Sequence[str] = CANDIDATES, kept: int = 32) -> None:
        """
        Args:
            rates: what choices go by.
            candidates: permutations to choose among, the first of equals first.
            kept: plans to keep.
        """
        self.rates, self.candidates, self._most = rates, tuple(candidates), kept
        self._kept: OrderedDict[tuple, Choice] = OrderedDict()
        self._cuts: dict[tuple[str, int, str], MaskPartition] = {}
        """of the last mask and number of ranks, since strategies try several schedules one after the other; 40 MB for 96 ranks and 1000
        documents"""

    def plan(self, mask: Mask, world: int, schedule: Gather | Ring, permutation: str = BEST) -> Plan:
        """
        Args:
            world: ranks that divide the sequence; in a hybrid, those of one ring.
            permutation: a name that `permutations.place` knows, or the one of the candidates that costs least.
        """
        return self.choice(mask, world, schedule, permutation).plan

    def choice(self, mask: Mask, world: int, schedule: Gather | Ring, permutation: str = BEST) -> Choice:
        """`plan`, with what it would cost."""
        key = mask.digest, world, schedule, permutation
        if key not in self._kept:
            one = [permutation] if permutation != BEST else None
            self._kept[key] = self.choices(mask, world, schedule, one)[0]
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    def choices(self, mask: Mask, world: int, schedule: Gather | Ring, names: Sequence[str] | None = None) -> list[Choice]:
        """Those of these names, by default of all candidates that may be the best; the cheapest first."""
        if names is None:
            names = [name for name in self.candidates if worth_trying(name, mask)] or self.candidates
        plans = (schedule.plan_of(self._cut(mask, world, name)) for name in names)
        return sorted((Choice(plan, cost_of(plan, self.rates)) for plan in plans), key=lambda choice: choice.cost.total_s)

    def _cut(self, mask: Mask, world: int, name: str) -> MaskPartition:
        key = mask.digest, world, name
        if key not in self._cuts:
            self._cuts = {known: cut for known, cut in self._cuts.items() if known[:2] == key[:2]}
            self._cuts[key] = partition_mask(mask, place(name, mask, world))
        return self._cuts[key]
