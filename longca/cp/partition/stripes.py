"""Bands cut by token stripes.

Rows r, r + P, … of a band see keys s, s + P, … of it: one band again. For all pairs at once, the keys of s below a column x are
x // P, and one more where x mod P > s. Along the rows of one rank the end of a row stays or moves by P, so x mod P is the same for all
of them: a sum over rows is one number for all s, and one step in s.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from longca.cp.partition.mask_partition import KeyBuffer, MaskPartition, joined, tagged
from longca.cp.partition.sharding import StripedSharding, TokenRanges
from longca.masks.band import HI, INF, LO, Q0, Q1, tight
from longca.masks.mask import Mask

if TYPE_CHECKING:
    from longca.cp.partition.mask_partition import KeyRange


class StripedPartition(MaskPartition):
    placement: StripedSharding

    def __init__(self, mask: Mask, placement: StripedSharding) -> None:
        super().__init__(mask, placement)
        self._bands, self._group = tagged(mask)

    @cached_property
    def areas(self) -> np.ndarray:
        q0, q1, k0, k1, lo, hi = self._bands.T
        falls, rises = np.clip(k0 - lo, q0, q1), np.clip(k1 - hi - 1, q0, q1)  # where the ends of rows begin or cease to move
        upper = self._ends(q0, rises, hi + 1, True) + self._ends(rises, q1, k1, False)
        return upper - self._ends(q0, falls, k0, False) - self._ends(falls, q1, lo, True)

    def _ends(self, first: np.ndarray, behind: np.ndarray, end: np.ndarray, moving: bool) -> np.ndarray:
        """Sum over rows first..behind of the keys of s below column `end`, or `end` + the row if it is moving, (P, P)."""
        some = first < behind
        first, behind, end = first[some], behind[some], end[some]
        before = self.placement.before(first)
        num_rows, ranks = self.placement.before(behind) - before, np.arange(self.placement.world)
        column = end[:, None] + ranks if moving else np.repeat(end[:, None], len(ranks), axis=1)
        rounds, rest = np.divmod(column, self.placement.world)
        rounds *= num_rows
        if moving:
            rounds += num_rows * before + num_rows * (num_rows - 1) // 2
        return self.placement.sum_before(np.tile(ranks, len(first)), rounds.ravel(), rest.ravel(), num_rows.ravel())

    @cached_property
    def _rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Of each rank and band with rows of that rank: (rank, number of rows, first and behind the last key that some of them sees)."""
        world = self.placement.world
        q0, q1, k0, k1, lo, hi = self._bands.T
        before = self.placement.before(q0)
        num_rows = (self.placement.before(q1) - before).T
        rank, band = np.nonzero(num_rows)
        num_rows = num_rows[rank, band]
        row = rank + world * before[band, rank]
        first = np.maximum(k0[band], row + lo[band])
        return rank, num_rows, first, np.minimum(k1[band], row + world * (num_rows - 1) + hi[band] + 1)

    @cached_property
    def meetings(self) -> np.ndarray:
        world = self.placement.world
        rank, num_rows, first, behind = self._rows
        total = np.bincount(rank, num_rows * np.minimum(behind - first, world), world).astype(np.int64)
        return np.repeat(-(-total // world)[:, None], world, axis=1)

    @cached_property
    def needs(self) -> TokenRanges:
        rank, _, first, behind = self._rows
        return TokenRanges.union(rank, first, behind, self.placement.seqlen)

    def local(self, rank: int, keys: Sequence[KeyRange]) -> Mask:
        buffer, world = KeyBuffer(keys), self.placement.world
        source, band = (index.ravel() for index in np.meshgrid(buffer.sources, np.arange(len(self._bands)), indexing="ij"))
        b = self._bands[band]
        offset = source - rank
        b[:, [Q0, Q1]] = -((rank - b[:, [Q0, Q1]]) // world)
        b[:, 2:4] = -((source[:, None] - b[:, 2:4]) // world)
        low, high = np.abs(b[:, LO]) < INF, np.abs(b[:, HI]) < INF
        b[low, LO] = -((offset[low] - b[low, LO]) // world)
        b[high, HI] = (b[high, HI] - offset[high]) // world
        b, kept = tight(b)
        b, group = buffer.place(b, source[kept]), self._group[band[kept]]
        return self._of_bands(rank, keys, [joined(b[group == number]) for number in range(self.mask.num_groups)])
