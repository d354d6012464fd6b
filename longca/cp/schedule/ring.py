"""Rings: in each step a rank computes with the keys of another one and passes them on.

Only what some rank further on still sees is passed on, from the first such key to the last: a window moves its halo, and a hop that nobody
waits for is none. Three ways round:

- a single ring: step n is about the keys of the rank n before;
- a double ring, of windows: keys go round in a window while they are on their way to the next one;
- both ways: the keys of the rank before, of the one after, of the second before … so that what windows and documents see
  on either side is near.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from longca.cp.partition.mask_partition import MaskPartition
from longca.cp.schedule.plan import Plan, Ring, Transfer

if TYPE_CHECKING:
    from longca.cp.partition.mask_partition import KeyRange


class RingPlan(Plan):
    coupled = True

    def __init__(self, cut: MaskPartition, schedule: Ring) -> None:
        super().__init__(cut, schedule)
        window, two_way = schedule.window, schedule.two_way
        if window is not None and (window < 1 or self.world % window or two_way):
            raise ValueError(f"{self.world} ranks are no whole number of windows of {window}" if not two_way
                             else "a double ring goes one way: leave `window` or `two_way` out")
        self.num_steps, self._window, self._two_way = self.world, window or self.world, two_way
        ranks = np.arange(self.world)
        self._source = np.stack([self._walk(ranks, number, -1) for number in range(self.world)], axis=1)
        """(P, T)"""
        rows = ranks[:, None]
        self.step_areas, self.step_meetings = cut.areas[rows, self._source], cut.meetings[rows, self._source]
        self._seen = self._hulls()
        self._first, self._behind = self._needed_from_here_on()
        self.step_rows = np.maximum(self._behind - self._first, 0)
        self.step_rows[:, 0] = 0
        self.sent_rows = np.stack([self.step_rows[self._receiver(ranks, number), number] for number in range(self.world)], axis=1)

    def step_before(self, number: int) -> int:
        if self._two_way:
            return max(number - 2, 0)
        return number - 1 if number % self._window else number - self._window

    def due(self, number: int) -> int:
        return self.step_before(number) - 1

    def lane(self, number: int) -> str:
        return "keys" if self._two_way or number % self._window else "keys of windows"

    def keys(self, rank: int, number: int) -> tuple[KeyRange, ...]:
        if number == 0:
            return self._own(rank)
        first, behind = int(self._first[rank, number]), int(self._behind[rank, number])
        return ((int(self._source[rank, number]), first, behind),) if first < behind else ()

    def seen(self, rank: int, number: int) -> tuple[KeyRange, ...]:
        if number == 0:
            return self._own(rank)
        return self._part(rank, int(self._source[rank, number]))

    def senders(self, number: int) -> np.ndarray:
        return self._walk(self._source[:, number], self.step_before(number), 1)

    def receives(self, rank: int, number: int) -> list[Transfer]:
        if number == 0:
            return []
        sender = int(self.senders(number)[rank])
        return [Transfer(sender, *part) for part in self.keys(rank, number)]

    def sends(self, rank: int, number: int) -> list[Transfer]:
        if number == 0:
            return []
        receiver = int(self._receiver(np.asarray(rank), number))
        return [Transfer(receiver, *part) for part in self.keys(receiver, number)]

    def gradient_receives(self, rank: int, number: int) -> list[Transfer]:
        if number == 0:
            return []
        peer = int(self._walk(np.asarray(rank), number, 1))
        return [Transfer(peer, *part) for part in self._part(peer, rank)]

    def _walk(self, rank: np.ndarray, number: int, way: int) -> np.ndarray:
        """Where a rank's keys are in a step (way 1), or whose keys a rank has in it (−1)."""
        if self._two_way:
            return (rank + way * ((number + 1) // 2 if number % 2 else -(number // 2))) % self.world
        outer, inner = divmod(number, self._window)
        windows = self.world // self._window
        return (rank // self._window + way * outer) % windows * self._window + (rank + way * inner) % self._window

    def _receiver(self, rank: np.ndarray, number: int) -> np.ndarray:
        """To whom a rank passes keys for a step; itself for step 0."""
        source = self._walk(rank, self.step_before(number), -1) if number else rank
        return self._walk(source, number, 1)

    def _part(self, rank: int, source: int) -> tuple[KeyRange, ...]:
        """What a rank sees of another one's keys, from the first to the last."""
        first, behind = (int(hull[rank, source]) for hull in self._seen)
        return ((source, first, behind),) if first < behind else ()

    def _hulls(self) -> tuple[np.ndarray, np.ndarray]:
        """(first, behind) of what each rank sees of each source's keys, (P, P) each by (rank, source); first > behind for nothing."""
        first, behind = self.placement.hulls(self.cut.needs)
        seen = self.cut.areas > 0
        return np.where(seen, first, self.placement.seqlen), np.where(seen, behind, 0)

    def _needed_from_here_on(self) -> tuple[np.ndarray, np.ndarray]:
        """(first, behind) of the keys that a rank gets for each step, (P, T) each: what it and all after it need."""
        ranks = np.arange(self.world)[:, None]
        at = np.stack([self._walk(ranks[:, 0], number, 1) for number in range(self.world)], axis=1)  # (source, step) → rank
        first, behind = (hull[at, ranks] for hull in self._seen)
        for number in range(self.world - 1, 0, -1):
            before = self.step_before(number)
            first[:, before] = np.minimum(first[:, before], first[:, number])
            behind[:, before] = np.maximum(behind[:, before], behind[:, number])
        steps = np.arange(self.world)
        return first[self._source, steps], behind[self._source, steps]
