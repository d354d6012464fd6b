"""A gather of what is needed: each rank receives the keys that some query of it sees, once, from the rank that holds them.

Windows get a halo of their neighbours, documents the rest of themselves, without anybody having asked for either. Where that is little, one
kernel for all keys, after they have come, is quicker than one beside the messages and another whose result must be merged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from longca.cp.partition.mask_partition import MaskPartition
from longca.cp.schedule.plan import Gather, Plan, Transfer

if TYPE_CHECKING:
    from longca.cp.partition.mask_partition import KeyRange


class GatherPlan(Plan):
    coupled = False
    straight = True

    def __init__(self, cut: MaskPartition, schedule: Gather) -> None:
        super().__init__(cut, schedule)
        stages = schedule.stages
        if stages < 0:
            raise ValueError(f"keys that are gathered are computed with in 1 step or more, or 0 for one with a rank's own; not in {stages}")
        self.num_steps = 1 + max(stages, 1)
        ranks = np.arange(self.world)
        rows = np.where(cut.areas > 0, self.placement.counts(cut.needs), 0)
        remote = (rows > 0) & (ranks[:, None] != ranks)
        # sources in the order of the ring, so that in no stage all ranks want the same one
        nearest = (ranks[:, None] - ranks) % self.world  # (rank, distance) → source; of a rank and a source, their distance too
        before = np.cumsum(np.take_along_axis(remote, nearest, axis=1), axis=1) - 1
        place = np.take_along_axis(before, nearest, axis=1)
        self._stage = np.where(remote, 1 + place * stages // np.maximum(remote.sum(axis=1), 1)[:, None], -1)
        self._stage[ranks, ranks] = 0 if stages else 1
        self.step_areas, self.step_meetings = self._by_stage(cut.areas, 1), self._by_stage(cut.meetings, 1)
        rows[ranks, ranks] = 0
        self.step_rows, self.sent_rows = self._by_stage(rows, 1), self._by_stage(rows, 0)

    def _by_stage(self, counts: np.ndarray, axis: int) -> np.ndarray:
        return np.stack([np.where(self._stage == number, counts, 0).sum(axis=axis) for number in range(self.num_steps)], axis=1)

    def keys(self, rank: int, number: int) -> tuple[KeyRange, ...]:
        if number == 0:
            return self._own(rank)
        own = self._own(rank) if self._stage[rank, rank] == number else ()
        return *own, *self._needed(rank, self._senders(rank, number))

    def kept(self, rank: int, number: int) -> int:
        return int(self.placement.num_tokens[rank]) if self._stage[rank, rank] == number else 0

    def receives(self, rank: int, number: int) -> list[Transfer]:
        return [Transfer(source, source, first, behind) for source, first, behind in self._needed(rank, self._senders(rank, number))]

    def sends(self, rank: int, number: int) -> list[Transfer]:
        peers = np.flatnonzero(self._stage[:, rank] == number)
        return [Transfer(int(peer), rank, first, behind) for peer in peers if peer != rank
                for _, first, behind in self._needed(int(peer), np.array([rank]))]

    def gradient_sends(self, rank: int, number: int) -> list[Transfer]:
        return self.receives(rank, number)

    def _senders(self, rank: int, number: int) -> np.ndarray:
        sources = np.flatnonzero(self._stage[rank] == number)
        return sources[sources != rank]

    def _needed(self, rank: int, sources: np.ndarray) -> list[KeyRange]:
        """What a rank needs of each source: ranges of keys that lie one after the other at the source are one."""
        first, behind = self.cut.needs.of(rank)
        begin, end = (self.placement.before(side)[:, sources].T for side in (first, behind))
        source, number = np.nonzero(begin < end)
        begin, end = begin[source, number], end[source, number]
        goes_on = (source[1:] == source[:-1]) & (begin[1:] == end[:-1])
        starts = np.flatnonzero(np.append(True, ~goes_on)[:len(source)])
        last = np.append(starts[1:], len(source))[:len(starts)] - 1
        return list(zip(sources[source[starts]].tolist(), begin[starts].tolist(), end[last].tolist(), strict=True))
