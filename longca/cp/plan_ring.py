"""Rings: in each step a rank computes with the keys of another one and passes them on.

Only what some rank further on still sees is passed on, from the first such key to the last: a window moves its halo, and a hop that nobody
waits for is none. A double ring is rings inside windows: keys go round in a window while they are on their way to the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from longca.cp.cut import Cut
from longca.cp.plan import Move, Plan

if TYPE_CHECKING:
    from longca.cp.cut import KeyRange


class RingPlan(Plan):
    """Step a · w + b of rank (window, member) is about the keys of rank (window − a, member − b), for windows of w ranks."""

    coupled = True

    def __init__(self, cut: Cut, window: int) -> None:
        super().__init__(cut)
        if window < 1 or self.world % window:
            raise ValueError(f"{self.world} ranks are no whole number of windows of {window}")
        self.num_steps, self.window = self.world, window
        ranks = np.arange(self.world)
        self._source = np.stack([self._walk(ranks, number, -1) for number in range(self.world)], axis=1)
        """(P, T)"""
        rows = ranks[:, None]
        self.step_areas, self.step_meetings = cut.areas[rows, self._source], cut.meetings[rows, self._source]
        self._first, self._behind = self._needed_from_here_on()
        self.step_rows = np.maximum(self._behind - self._first, 0)
        self.step_rows[:, 0] = 0
        self.sent_rows = np.stack([self.step_rows[self._next(ranks, number), number] for number in range(self.world)], axis=1)
        self.sent_rows[:, 0] = 0

    def keys(self, rank: int, number: int) -> tuple[KeyRange, ...]:
        if number == 0:
            return self._own(rank)
        first, behind = int(self._first[rank, number]), int(self._behind[rank, number])
        return ((int(self._source[rank, number]), first, behind),) if first < behind else ()

    def receives(self, rank: int, number: int) -> list[Move]:
        peer = int(self._next(rank, number, -1))
        return [Move(peer, *part) for part in self.keys(rank, number)] if number else []

    def sends(self, rank: int, number: int) -> list[Move]:
        """Of the keys that this rank has had since the step before; in a double ring, since the first one with these of its window."""
        peer = int(self._next(rank, number))
        return [Move(peer, *part) for part in self.keys(peer, number)] if number else []

    def _walk(self, rank: np.ndarray, number: int, way: int) -> np.ndarray:
        """The rank that is `number` steps on (way 1) or back (−1)."""
        outer, inner = divmod(number, self.window)
        windows = self.world // self.window
        return (rank // self.window + way * outer) % windows * self.window + (rank + way * inner) % self.window

    def _next(self, rank: np.ndarray | int, number: int, way: int = 1) -> np.ndarray:
        """Who gets a rank's keys for that step: the next in the window, or the same member of the next window."""
        return self._walk(np.asarray(rank), 1 if number % self.window else self.window % self.world, way)

    def _needed_from_here_on(self) -> tuple[np.ndarray, np.ndarray]:
        """(first, behind) of the keys that a rank gets for each step, (P, T) each: what it and all after it need."""
        ranks, shape = np.arange(self.world), (self.world, self.world // self.window, self.window)
        at = np.stack([self._walk(ranks, number, 1) for number in range(self.world)], axis=1)  # (source, step) → rank
        seen = self.cut.areas[at, ranks[:, None]] > 0
        first, behind = (hull[at, ranks[:, None]] for hull in self.placement.hulls(self.cut.needs))
        limits = []
        for hull, reduce, nothing in ((first, np.minimum, self.placement.seqlen), (behind, np.maximum, 0)):
            hull = np.where(seen, hull, nothing).reshape(shape)
            hull = reduce.accumulate(hull[..., ::-1], axis=2)[..., ::-1].copy()
            hull[:, :, 0] = reduce.accumulate(hull[:, ::-1, 0], axis=1)[:, ::-1]
            limits.append(hull.reshape(self.world, self.world)[self._source, np.arange(self.world)])
        return limits[0], limits[1]
