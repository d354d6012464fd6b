"""Gathers: each rank receives its visible KV once, from the owner.

Under a sliding window a rank gets the halo of its neighbours, under document masks the remainder of its
documents. If this is little, a single kernel after the arrival of all KV is faster than one that overlaps
with messages plus another one whose result must be merged (`stages` = 0).

    stages      step 0               step 1                       step 2
    0           nothing              own KV and all others'
    1           own KV               all others'
    2           own KV               first half of the owners     the other half
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from longca.cp.partition.factory import partition_mask
from longca.cp.partition.mask_partition import MaskPartition
from longca.cp.schedule.plan import Plan, StepMessages, Transfer

if TYPE_CHECKING:
    from longca.cp.partition.mask_partition import KvRange
    from longca.cp.partition.sharding import Sharding
    from longca.masks import Mask


@dataclass(frozen=True)
class Gather:
    """The schedule in which each rank gets its visible KV from the owners."""

    stages: int = 1
    """number of steps for remote KV: with several, the next KV arrives during a step. 0: one step together
    with the rank's own KV, after all KV has arrived"""

    def plan(self, mask: Mask, sharding: Sharding) -> GatherPlan:
        return GatherPlan(partition_mask(mask, sharding), self)

    def plans_of(self, partitions: Sequence[MaskPartition]) -> list[GatherPlan]:
        return [GatherPlan(partition, self) for partition in partitions]

    def __str__(self) -> str:
        return (
            f"a gather in {self.stages} step{'s' if self.stages > 1 else ''}"
            if self.stages
            else "a gather first"
        )


class GatherPlan(Plan):
    """The plan of a gather. It has one step for own KV and one for each stage."""

    forwards_kv = False
    is_all_to_all = True

    def __init__(self, partition: MaskPartition, schedule: Gather) -> None:
        super().__init__(partition, schedule)
        stages = schedule.stages
        if stages < 0:
            raise ValueError(
                f"keys that are gathered are computed with in 1 step or more, or 0 for one with a rank's "
                f"own; not in {stages}"
            )
        self.num_steps = 1 + max(stages, 1)
        self._num_kv, rank_order = partition.remote_needed
        num_remote = (self._num_kv > 0).sum(axis=1, keepdims=True)
        self._step = np.where(self._num_kv > 0, 1 + rank_order * stages // np.maximum(num_remote, 1), -1)
        """the step in which a rank uses an owner's KV, (P, P) by (rank, owner); −1 for never"""
        np.fill_diagonal(self._step, 0 if stages else 1)
        there = self._step >= 0
        ranks, owners = np.nonzero(there)
        steps = self._step[there]
        self.step_areas, self.step_band_rows, self.received_kv, self.sent_kv = (
            self._by_step(counts[there], side, steps)
            for counts, side in (
                (partition.areas, ranks),
                (partition.band_rows, ranks),
                (self._num_kv, ranks),
                (self._num_kv, owners),
            )
        )

    def _by_step(self, counts: np.ndarray, ranks: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """The counts (n,) summed by rank and step, (P, T), in one pass, since there may be as many steps as
        ranks."""
        sums = np.zeros(self.world * self.num_steps, dtype=counts.dtype)
        np.add.at(sums, ranks * self.num_steps + steps, counts)
        return sums.reshape(self.world, self.num_steps)

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
        peers = np.flatnonzero(self._step[:, rank] == number)
        return [
            Transfer(int(peer), rank, start, end)
            for peer in peers
            if peer != rank
            for _, start, end in self._needed_of(int(peer), np.array([rank]))
        ]

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
        first, last = self.partition.needed_keys.of(rank)
        start, end = (self.sharding.num_before(side)[:, owners].T for side in (first, last))
        owner, number = np.nonzero(start < end)
        start = start[owner, number]
        end = end[owner, number]
        goes_on = (owner[1:] == owner[:-1]) & (start[1:] == end[:-1])
        heads = np.flatnonzero(np.append(True, ~goes_on)[: len(owner)])
        tails = np.append(heads[1:], len(owner))[: len(heads)] - 1
        return list(
            zip(owners[owner[heads]].tolist(), start[heads].tolist(), end[tails].tolist(), strict=True)
        )
