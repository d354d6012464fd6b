"""Partitions of band masks by stripes.

Rows r, r + P, … and keys s, s + P, … of a band form a band again. All pairs of ranks are counted at once. The
number of keys of rank s below a column x is x // P, plus one if x mod P > s. Along the rows of one rank the
end of a row is fixed or moves by P, so x mod P is constant: a sum over rows is a constant plus a step
function of s.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from longca.cp.partition.mask_partition import KvLayout, MaskPartition, join_rectangles, tagged_bands
from longca.cp.partition.sharding import StripedSharding, TokenRanges
from longca.masks.band import HI, INF, LO, Q0, Q1, tight
from longca.masks.mask import Mask

if TYPE_CHECKING:
    from longca.cp.partition.mask_partition import KvRange


class StripedPartition(MaskPartition):
    """A band mask on a striped sharding."""

    sharding: StripedSharding

    def __init__(self, mask: Mask, sharding: StripedSharding) -> None:
        super().__init__(mask, sharding)
        self._bands, self._group = tagged_bands(mask)

    @cached_property
    def areas(self) -> np.ndarray:
        q0, q1, k0, k1, lo, hi = self._bands.T
        # rows in which row ends begin or stop moving
        falls, rises = np.clip(k0 - lo, q0, q1), np.clip(k1 - hi - 1, q0, q1)
        upper = self._sum_of_ends(q0, rises, hi + 1, True) + self._sum_of_ends(rises, q1, k1, False)
        return upper - self._sum_of_ends(q0, falls, k0, False) - self._sum_of_ends(falls, q1, lo, True)

    def _sum_of_ends(
        self, start: np.ndarray, end: np.ndarray, column: np.ndarray, moving: bool
    ) -> np.ndarray:
        """Sums, over rows start..end of each rank, the keys of s below a column, (P, P).

        Args:
            column: of each band; counted from the row if `moving`.
        """
        some = start < end
        start, end, column = start[some], end[some], column[some]
        before = self.sharding.num_before(start)
        num_rows, ranks = self.sharding.num_before(end) - before, np.arange(self.sharding.world)
        limit = column[:, None] + ranks if moving else np.repeat(column[:, None], len(ranks), axis=1)
        rounds, rest = np.divmod(limit, self.sharding.world)
        rounds *= num_rows
        if moving:
            rounds += num_rows * before + num_rows * (num_rows - 1) // 2
        return self.sharding.sum_before(
            np.tile(ranks, len(start)), rounds.ravel(), rest.ravel(), num_rows.ravel()
        )

    @cached_property
    def _rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(rank, number of rows, start and end of the keys that they see), for each rank and band with rows
        of that rank."""
        world = self.sharding.world
        q0, q1, k0, k1, lo, hi = self._bands.T
        before = self.sharding.num_before(q0)
        num_rows = (self.sharding.num_before(q1) - before).T
        rank, band = np.nonzero(num_rows)
        num_rows = num_rows[rank, band]
        row = rank + world * before[band, rank]
        start = np.maximum(k0[band], row + lo[band])
        return rank, num_rows, start, np.minimum(k1[band], row + world * (num_rows - 1) + hi[band] + 1)

    @cached_property
    def band_rows(self) -> np.ndarray:
        world = self.sharding.world
        rank, num_rows, start, end = self._rows
        total = np.bincount(rank, num_rows * np.minimum(end - start, world), world).astype(np.int64)
        return np.repeat(-(-total // world)[:, None], world, axis=1)

    @cached_property
    def needed_keys(self) -> TokenRanges:
        rank, _, start, end = self._rows
        return TokenRanges.union(rank, start, end, self.sharding.seqlen)

    def local_mask(self, rank: int, keys: Sequence[KvRange]) -> Mask:
        layout, world = KvLayout(keys), self.sharding.world
        owner, band = (
            index.ravel() for index in np.meshgrid(layout.owners, np.arange(len(self._bands)), indexing="ij")
        )
        b = self._bands[band]
        offset = owner - rank
        b[:, [Q0, Q1]] = -((rank - b[:, [Q0, Q1]]) // world)
        b[:, 2:4] = -((owner[:, None] - b[:, 2:4]) // world)
        low, high = np.abs(b[:, LO]) < INF, np.abs(b[:, HI]) < INF
        b[low, LO] = -((offset[low] - b[low, LO]) // world)
        b[high, HI] = (b[high, HI] - offset[high]) // world
        b, kept = tight(b)
        b, group = layout.place(b, owner[kept]), self._group[band[kept]]
        return self._mask_of_bands(
            rank, keys, [join_rectangles(b[group == number]) for number in range(self.mask.num_groups)]
        )
