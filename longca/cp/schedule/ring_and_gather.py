"""The two schedules of a plan: rings and gathers. `longca.cp.schedule.plan` draws a ring and explains the terms.

**Rings:** in each step a rank computes with the KV of another rank and forwards it.

Only the range of KV that a later rank needs is forwarded: a sliding window sends its halo, and unneeded
transfers are skipped. There are three kinds of rings. The owner of the KV on rank 0, with 8 ranks, in each
step:

    step                            0   1   2   3   4   5   6   7
    single ring                     0   7   6   5   4   3   2   1    the rank before, again and again
    double ring, windows of 4       0   3   2   1   4   7   6   5    KV goes round in a window while the next window's is on its way
    two-way ring                    0   7   1   6   2   5   3   4    both neighbours first: near KV for windows and documents

**Gathers:** each rank receives its visible KV once, from the owner.

Under a sliding window a rank gets the halo of its neighbours, under document masks the remainder of its
documents. If this is little, a single kernel after the arrival of all KV is faster than one that overlaps
with messages plus another one whose result must be merged (`stages` = 0).

    stages      step 0               step 1                       step 2
    0           nothing              own KV and all others'
    1           own KV               all others'
    2           own KV               first half of the owners     the other half
"""  # noqa: E501

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np

from longca.cp.partition.mask_partition import PartitionStack
from longca.cp.schedule.plan import Plan, PlanStack, StepMessages, Transfer
from longca.cp.schedule.planner import partition_mask

if TYPE_CHECKING:
    from longca.cp.partition.mask_partition import KvRange, MaskPartition
    from longca.cp.partition.sharding import Sharding
    from longca.masks import Mask


@dataclass(frozen=True)
class Ring:
    """The schedule in which KV circulates from rank to rank."""

    window: int | None = None
    """ranks of an inner ring, for a double ring; None for a single ring"""
    two_way: bool = False
    """True if KV circulates in both directions, half way each, so that neighbours on both sides are one
    transfer away"""

    def plan(self, mask: Mask, sharding: Sharding) -> Plan:
        return self.plans_of(PartitionStack([partition_mask(mask, sharding)]))[0]

    def plans_of(self, partitions: PartitionStack) -> PlanStack:
        order = ring_order(self, partitions.world)
        return PlanStack(partitions.partitions, partial(RingPlan, self, order), order.counts_of(partitions))

    def __str__(self) -> str:
        if self.window is not None:
            return f"a double ring by windows of {self.window}"
        return "a ring both ways" if self.two_way else "a ring"


class RingOrder:
    """Rank-to-owner tables of a ring (owner, holder, receiver, sender for each step); independent of mask and
    sharding."""

    def __init__(self, schedule: Ring, world: int) -> None:
        """
        Raises:
            ValueError: the schedule's options do not fit this number of ranks.
        """
        window = schedule.window
        self.two_way = schedule.two_way
        if window is not None and (window < 1 or world % window or self.two_way):
            raise ValueError(
                f"{world} ranks are no whole number of windows of {window}"
                if not self.two_way
                else "a double ring goes one way: leave `window` or `two_way` out"
            )
        self.world = world
        self.window = window or world
        ranks = np.arange(world)[:, None]
        steps = np.arange(world)
        self.before = self._forwarded_from(steps)
        """`Plan.forwarded_from` of each step; 0 for step 0"""
        self.owner = self._walk(ranks, steps, -1)
        """the owner of the KV that a rank has in a step, (P, T)"""
        self.holder = self._walk(ranks, steps, 1)
        """the rank that has an owner's KV in a step, (P, T)"""
        self.receiver = self._walk(self._walk(ranks, self.before, -1), steps, 1)
        """the rank to which a rank forwards KV for a step, (P, T); itself for step 0"""

    @cached_property
    def sender(self) -> np.ndarray:
        """The rank from which a rank gets the KV of a step, (P, T). Undefined in step 0."""
        return self._walk(self.owner, self.before, 1)

    def counts_of(self, partitions: PartitionStack) -> tuple[np.ndarray, ...]:
        """(`step_areas`, `step_band_rows`, `received_kv`, `sent_kv`, start, end) of the plans of several
        partitions, (J, P, T) each. start and end are those of the KV that a rank receives for each step: for
        itself and for all later ranks."""
        owners = np.arange(self.world)
        areas, band_rows = (
            counts[:, owners[:, None], self.owner] for counts in (partitions.areas, partitions.band_rows)
        )
        ranges = []
        for hulls, reduce in zip(partitions.needed_hulls, (np.minimum, np.maximum), strict=True):
            # by step, partition and owner
            needed = np.ascontiguousarray(hulls[:, self.holder.T, owners].swapaxes(0, 1))
            self.spread_back(needed, reduce)
            ranges.append(needed.swapaxes(0, 1)[:, owners, self.owner])
        received = np.maximum(ranges[1] - ranges[0], 0)
        received[..., 0] = 0
        return areas, band_rows, received, received[:, self.receiver, owners], *ranges

    def spread_back(self, needed: np.ndarray, reduce: np.ufunc) -> None:
        """Reduces, in place, the needed KV of each step (T, …) with that of the steps for which it is
        forwarded.

        Args:
            reduce: takes two arguments and keeps one of them, as `numpy.minimum` does.
        """
        if self.two_way:
            chains = [needed[1::2], needed[::2]]
        else:
            rounds = needed.reshape(-1, self.window, *needed.shape[1:])
            chains = [np.moveaxis(rounds, 1, 0), rounds[:, 0]]
        for chain in chains:
            reduce.accumulate(chain[::-1], axis=0, out=chain[::-1])
        if self.two_way:
            reduce(needed[0], needed[:2][-1], out=needed[0])

    def _forwarded_from(self, number: np.ndarray) -> np.ndarray:
        before = (
            number - 2 if self.two_way else np.where(number % self.window, number - 1, number - self.window)
        )
        return np.maximum(before, 0)

    def _walk(self, rank: np.ndarray, number: np.ndarray, way: int) -> np.ndarray:
        """The rank that has a rank's KV in a step (way 1), or the owner of the KV that a rank has in it (way
        −1)."""
        if self.two_way:
            return (rank + way * np.where(number % 2, (number + 1) // 2, -(number // 2))) % self.world
        outer, inner = np.divmod(number, self.window)
        windows = self.world // self.window
        return (rank // self.window + way * outer) % windows * self.window + (
            rank + way * inner
        ) % self.window


@lru_cache(maxsize=64)
def ring_order(schedule: Ring, world: int) -> RingOrder:
    """`RingOrder`, made once."""
    return RingOrder(schedule, world)


class RingPlan(Plan):
    """The plan of a ring. It has as many steps as ranks."""

    forwards_kv = True

    def __init__(
        self, schedule: Ring, order: RingOrder, partition: MaskPartition, *counts: np.ndarray
    ) -> None:
        """
        Args:
            counts: as of `RingOrder.counts_of`, (P, T) each.
        """
        super().__init__(partition, schedule)
        self.num_steps = self.world
        self._order = order
        self._needed = partition.needed_hulls
        self.step_areas, self.step_band_rows, self.received_kv, self.sent_kv, self._start, self._end = counts

    def forwarded_from(self, number: int) -> int:
        return int(self._order.before[number])

    def post_after(self, number: int) -> int:
        return self.forwarded_from(number) - 1

    def stream(self, number: int) -> str:
        return "keys" if self._order.two_way or number % self._order.window else "keys of windows"

    def held_kv(self, rank: int, number: int) -> tuple[KvRange, ...]:
        if number == 0:
            return self._own_kv(rank)
        start = int(self._start[rank, number])
        end = int(self._end[rank, number])
        return ((int(self._order.owner[rank, number]), start, end),) if start < end else ()

    def needed_kv(self, rank: int, number: int) -> tuple[KvRange, ...]:
        if number == 0:
            return self._own_kv(rank)
        return self._needed_of(rank, int(self._order.owner[rank, number]))

    def senders(self, number: int) -> np.ndarray:
        return self._order.sender[:, number]

    def receives(self, rank: int, number: int) -> list[Transfer]:
        if number == 0:
            return []
        sender = int(self.senders(number)[rank])
        return [Transfer(sender, *part) for part in self.held_kv(rank, number)]

    def sends(self, rank: int, number: int) -> list[Transfer]:
        if number == 0:
            return []
        receiver = int(self._order.receiver[rank, number])
        return [Transfer(receiver, *part) for part in self.held_kv(receiver, number)]

    def dkv_receives(self, rank: int, number: int) -> list[Transfer]:
        if number == 0:
            return []
        peer = int(self._order.holder[rank, number])
        return [Transfer(peer, *part) for part in self._needed_of(peer, rank)]

    def messages(self, number: int) -> StepMessages:
        ranks = np.arange(self.world)
        return StepMessages.of(ranks, self.senders(number) if number else ranks, self.received_kv[:, number])

    def dkv_messages(self, number: int) -> StepMessages:
        ranks = np.arange(self.world)
        owner = self._order.owner[:, number]
        width = np.maximum(self._needed[1][ranks, owner] - self._needed[0][ranks, owner], 0)
        return StepMessages.of(owner, ranks, width * (number > 0))

    def _needed_of(self, rank: int, owner: int) -> tuple[KvRange, ...]:
        """The KV of an owner that a rank uses, from the first to the last visible token."""
        start, end = (int(hull[rank, owner]) for hull in self._needed)
        return ((owner, start, end),) if start < end else ()


@dataclass(frozen=True)
class Gather:
    """The schedule in which each rank gets its visible KV from the owners."""

    stages: int = 1
    """number of steps for remote KV: with several, the next KV arrives during a step. 0: one step together
    with the rank's own KV, after all KV has arrived"""

    def plan(self, mask: Mask, sharding: Sharding) -> Plan:
        return self.plans_of(PartitionStack([partition_mask(mask, sharding)]))[0]

    def plans_of(self, partitions: PartitionStack) -> PlanStack:
        counts = gather_counts(self.stages, partitions)
        return PlanStack(partitions.partitions, partial(GatherPlan, self), counts)

    def __str__(self) -> str:
        return (
            f"a gather in {self.stages} step{'s' if self.stages > 1 else ''}"
            if self.stages
            else "a gather first"
        )


def gather_counts(stages: int, partitions: PartitionStack) -> tuple[np.ndarray, ...]:
    """(`step_areas`, `step_band_rows`, `received_kv`, `sent_kv`, number of keys from other ranks, step in
    which they are used) of the plans of several partitions: (J, P, T), and (J, P, P) by (rank, owner), the
    step −1 for never.

    Raises:
        ValueError: a negative number of stages.
    """
    if stages < 0:
        raise ValueError(
            f"keys that are gathered are computed with in 1 step or more, or 0 for one with a rank's "
            f"own; not in {stages}"
        )
    world = partitions.world
    num_steps = 1 + max(stages, 1)
    num_kv, place = partitions.remote_needed
    num_remote = (num_kv > 0).sum(axis=2, keepdims=True)
    step = np.where(num_kv > 0, 1 + place * stages // np.maximum(num_remote, 1), -1)
    ranks = np.arange(world)
    step[:, ranks, ranks] = 0 if stages else 1
    there = step >= 0
    plan, rank, owner = np.nonzero(there)
    steps = step[there]
    of_rank, of_owner = ((plan * world + side) * num_steps + steps for side in (rank, owner))

    def by_step(counts: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Sums by plan, rank and step, in one pass, since there may be as many steps as ranks."""
        sums = np.zeros(len(there) * world * num_steps, dtype=counts.dtype)
        np.add.at(sums, places, counts[there])
        return sums.reshape(-1, world, num_steps)

    sides = (
        (partitions.areas, of_rank),
        (partitions.band_rows, of_rank),
        (num_kv, of_rank),
        (num_kv, of_owner),
    )
    return *(by_step(*side) for side in sides), num_kv, step


class GatherPlan(Plan):
    """The plan of a gather. It has one step for own KV and one for each stage."""

    forwards_kv = False
    is_all_to_all = True

    def __init__(self, schedule: Gather, partition: MaskPartition, *counts: np.ndarray) -> None:
        """
        Args:
            counts: as of `gather_counts`.
        """
        super().__init__(partition, schedule)
        self.num_steps = 1 + max(schedule.stages, 1)
        self.step_areas, self.step_band_rows, self.received_kv, self.sent_kv, *of_pairs = counts
        self._num_kv, self._step = of_pairs
        self._received: dict[int, dict[int, list[tuple[int, int]]]] = {}
        """ranges of KV that a rank needs, by owner"""
        self._sent: dict[int, dict[int, list[tuple[int, int]]]] = {}
        """ranges of a rank's KV that others need, by their rank"""

    def held_kv(self, rank: int, number: int) -> tuple[KvRange, ...]:
        if number == 0:
            return self._own_kv(rank)
        own = self._own_kv(rank) if self._step[rank, rank] == number else ()
        return *own, *self._needed_of(rank, self._owners(rank, number))

    def num_own_kv(self, rank: int, number: int) -> int:
        return int(self.sharding.num_tokens[rank]) if self._step[rank, rank] == number else 0

    def receives(self, rank: int, number: int) -> list[Transfer]:
        return [
            Transfer(owner, owner, start, end)
            for owner, start, end in self._needed_of(rank, self._owners(rank, number))
        ]

    def sends(self, rank: int, number: int) -> list[Transfer]:
        peers = np.flatnonzero(self._step[:, rank] == number).tolist()
        if rank not in self._sent:
            needed = self.partition.needed_keys
            start, end = (self.sharding.num_before_on(side, rank) for side in (needed.start, needed.end))
            self._sent[rank] = _merged(needed.rank, start, end)
        sent = self._sent[rank]
        return [Transfer(peer, rank, *part) for peer in peers if peer != rank for part in sent.get(peer, ())]

    def dkv_sends(self, rank: int, number: int) -> list[Transfer]:
        return self.receives(rank, number)

    @cached_property
    def _messages(self) -> list[StepMessages]:
        """Those of each step; all found in one pass."""
        receiver, sender = np.nonzero((self._step >= 0) & (self._num_kv > 0))
        step = self._step[receiver, sender]
        order = np.argsort(step, kind="stable")
        ends = np.searchsorted(step[order], np.arange(1, self.num_steps))
        return [
            StepMessages(receiver[part], sender[part], self._num_kv[receiver[part], sender[part]])
            for part in np.split(order, ends)
        ]

    def messages(self, number: int) -> StepMessages:
        return self._messages[number]

    def dkv_messages(self, number: int) -> StepMessages:
        there = self.messages(number)
        return StepMessages(there.sender, there.receiver, there.tokens)

    def _owners(self, rank: int, number: int) -> np.ndarray:
        """The other ranks whose KV a rank uses in a step."""
        owners = np.flatnonzero(self._step[rank] == number)
        return owners[owners != rank]

    def _needed_of(self, rank: int, owners: np.ndarray) -> list[KvRange]:
        """The KV that a rank needs from each owner, with adjacent ranges merged."""
        if rank not in self._received:
            start, end = (self.sharding.num_before(side).T for side in self.partition.needed_keys.of(rank))
            owner = np.repeat(np.arange(self.world), start.shape[1])
            self._received[rank] = _merged(owner, start.ravel(), end.ravel())
        received = self._received[rank]
        return [(owner, *part) for owner in owners.tolist() for part in received.get(owner, ())]


def _merged(rank: np.ndarray, start: np.ndarray, end: np.ndarray) -> dict[int, list[tuple[int, int]]]:
    """The non-empty ranges of each rank, with adjacent ones merged. They are sorted by rank and start, (n,)
    each."""
    some = np.flatnonzero(start < end)
    rank = rank[some]
    start = start[some]
    end = end[some]
    apart = (rank[1:] != rank[:-1]) | (start[1:] != end[:-1])
    first = np.append(True, apart)[: len(some)]
    last = np.append(apart, True)[: len(some)]
    ranges: dict[int, list[tuple[int, int]]] = {}
    for of_rank, begin, stop in zip(
        rank[first].tolist(), start[first].tolist(), end[last].tolist(), strict=True
    ):
        ranges.setdefault(of_rank, []).append((begin, stop))
    return ranges
