"""Who computes what, step by step, and what has to be there for it.

A plan is the same on every rank, and made from the mask alone: no rank asks another. Shapes: P ranks, T steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from longca.cp.partition.mask_partition import MaskPartition, partition_mask
from longca.masks.mask import Mask

if TYPE_CHECKING:
    from longca.cp.partition.mask_partition import KeyRange
    from longca.cp.partition.sharding import Sharding


@dataclass(frozen=True)
class Transfer:
    """Keys (and their values) that go between this rank and a peer; backward, their gradients go the other way."""

    peer: int
    source: int  # the rank that holds them
    first: int  # the first and behind the last, as indices into what the source holds
    behind: int

    def __len__(self) -> int:
        return self.behind - self.first


@dataclass(frozen=True)
class Step:
    """One kernel call: all queries of a rank, and some keys."""

    cut: MaskPartition
    rank: int
    number: int
    keys: tuple[KeyRange, ...]
    """in this order: (source, first, behind)"""
    area: int
    """visible pairs, over all head groups"""

    @cached_property
    def mask(self) -> Mask:
        """In local coordinates: queries in the order of the rank, keys in that of `keys`."""
        return self.cut.local(self.rank, self.keys)

    @property
    def num_keys(self) -> int:
        return sum(behind - first for _, first, behind in self.keys)


class Plan:
    """A cut mask on a schedule. Step 0 is a rank's own keys, which are there already.

    Steps without a visible pair are no steps, and keys that nobody waits for do not move.
    """

    coupled: bool
    """do keys go from rank to rank, so that ranks wait for each other?"""
    straight: ClassVar[bool] = False
    """do all keys come from who holds them, in the order of ranks? A step's messages are then one exchange among all ranks"""
    num_steps: int
    """at most, of one rank"""
    step_areas: np.ndarray
    """visible pairs, (P, T) int64"""
    step_meetings: np.ndarray
    """`MaskPartition.meetings`, (P, T) int64"""
    step_rows: np.ndarray
    """keys that a rank receives for each step, (P, T) int64; for step 0 none"""
    sent_rows: np.ndarray
    """keys that a rank sends for each step, (P, T) int64"""

    def __init__(self, cut: MaskPartition, schedule: Gather | Ring) -> None:
        self.cut, self.schedule = cut, schedule
        self.world = cut.placement.world

    @property
    def placement(self) -> Sharding:
        return self.cut.placement

    def of_mask(self, mask: Mask) -> Plan:
        """The plan of another mask, on the same schedule and placement."""
        return self.schedule.plan(mask, self.placement)

    def steps(self, rank: int) -> list[Step]:
        """The kernel calls of a rank, in order. Masks are made when they are looked at."""
        return [Step(self.cut, rank, number, self.seen(rank, number), int(area))
                for number, area in enumerate(self.step_areas[rank]) if area]

    def keys(self, rank: int, number: int) -> tuple[KeyRange, ...]:
        """What the buffer of a rank holds in a step, whether or not the rank computes with it."""
        raise NotImplementedError

    def seen(self, rank: int, number: int) -> tuple[KeyRange, ...]:
        """What the rank itself computes with in a step: of the buffer, each source's keys from the first to the last that it sees."""
        return self.keys(rank, number)

    def kept(self, rank: int, number: int) -> int:
        """Of the keys that a rank computes with in a step, the first so many are its own, and lie in front of what it receives."""
        return int(self.placement.num_tokens[rank]) if number == 0 else 0

    def step_before(self, number: int) -> int:
        """The step since which the sender has had the keys of step `number` > 0."""
        return 0

    def senders(self, number: int) -> np.ndarray:
        """From whom each rank gets its keys for step `number` > 0, where plans are `coupled`, (P,)."""
        raise NotImplementedError

    def due(self, number: int) -> int:
        """The step after whose kernel the keys of step `number` should set out; −1 for at the start."""
        return number - 2

    def lane(self, number: int) -> str:
        """Keys of different lanes do not wait for each other."""
        return "keys"

    def receives(self, rank: int, number: int) -> list[Transfer]:
        """What comes in for a step, in the order of the buffer."""
        raise NotImplementedError

    def sends(self, rank: int, number: int) -> list[Transfer]:
        """What goes out for the same step of others, by peer."""
        raise NotImplementedError

    def gradient_sends(self, rank: int, number: int) -> list[Transfer]:
        """Keys whose gradients go home after a step, straight to the rank that holds them, in the order of `seen` behind `kept`."""
        if number == 0 or not self.step_areas[rank, number]:
            return []
        return [Transfer(source, source, first, behind) for source, first, behind in self.seen(rank, number)]

    def gradient_receives(self, rank: int, number: int) -> list[Transfer]:
        """A rank's own keys of which gradients come home after the same step of others, by peer."""
        return self.sends(rank, number)

    def _own(self, rank: int) -> tuple[KeyRange, ...]:
        return ((rank, 0, int(self.placement.num_tokens[rank])),)


@dataclass(frozen=True)
class Gather:
    """Each rank gets the keys that it needs from who holds them."""

    stages: int = 1
    """in which remote keys are computed with: with more, the next arrive meanwhile. 0: in one step with a rank's own, when all are there"""

    def plan(self, mask: Mask, placement: Sharding) -> Plan:
        return self.plan_of(partition_mask(mask, placement))

    def plan_of(self, cut: MaskPartition) -> Plan:
        """`plan` of what is already cut, so that several schedules can share it."""
        from longca.cp.schedule.gather import GatherPlan

        return GatherPlan(cut, self)

    def __str__(self) -> str:
        return f"a gather in {self.stages} step{'s' if self.stages > 1 else ''}" if self.stages else "a gather first"


@dataclass(frozen=True)
class Ring:
    """Keys go round from rank to rank."""

    window: int | None = None
    """ranks of an inner ring, for the double ring; None for a single ring"""
    two_way: bool = False
    """keys go both ways, each half round: windows and documents then see their neighbours on either side after one hop"""

    def plan(self, mask: Mask, placement: Sharding) -> Plan:
        return self.plan_of(partition_mask(mask, placement))

    def plan_of(self, cut: MaskPartition) -> Plan:
        """`plan` of what is already cut, so that several schedules can share it."""
        from longca.cp.schedule.ring import RingPlan

        return RingPlan(cut, self)

    def __str__(self) -> str:
        if self.window is not None:
            return f"a double ring by windows of {self.window}"
        return "a ring both ways" if self.two_way else "a ring"
