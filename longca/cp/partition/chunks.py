"""Bands cut by runs of tokens.

For each band and each run of queries that it crosses, the columns are three parts: those that all these rows see (one rectangle
on every rank that holds some of them, since a rank holds its tokens in the order of the sequence), and up to two with the ends of
the rows, which are cut by the runs of keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from longca.cp.partition.mask_partition import KeyBuffer, MaskPartition, joined, moved, tagged
from longca.cp.partition.sharding import ChunkedSharding, TokenRanges, by_rank
from longca.masks.band import INF, areas, tight
from longca.masks.mask import Mask
from longca.masks.ragged import spread

if TYPE_CHECKING:
    from longca.cp.partition.mask_partition import KeyRange


class ChunkedPartition(MaskPartition):
    placement: ChunkedSharding

    def __init__(self, mask: Mask, placement: ChunkedSharding) -> None:
        super().__init__(mask, placement)
        edges = placement.edges
        bands, group = tagged(mask)
        q0, q1, k0, k1, lo, hi = bands.T
        band, run = spread(placement.run_of(q0), np.searchsorted(edges, q1))
        order = np.argsort(placement.owner[run], kind="stable")
        band, run = band[order], run[order]
        self._group, self._run, self._rank = group[band], run, placement.owner[run]
        k0, k1, self._lo, self._hi = k0[band], k1[band], lo[band], hi[band]
        self._q0, self._q1 = np.maximum(q0[band], edges[run]), np.minimum(q1[band], edges[run + 1])
        # columns that some row sees: all of them, since every row of a normal band sees a key
        self._first, self._behind = np.maximum(k0, self._q0 + self._lo), np.minimum(k1, self._q1 + self._hi)
        # columns that all rows see, back to whole runs where ends of rows are on their way
        first, behind = np.maximum(k0, self._q1 - 1 + self._lo), np.minimum(k1, self._q0 + self._hi + 1)
        inside = np.where(first > k0, edges[np.minimum(np.searchsorted(edges, first), len(edges) - 1)], k0)
        until = np.where(behind < k1, edges[np.maximum(np.searchsorted(edges, behind, side="right") - 1, 0)], k1)
        empty = (inside >= until) | (first >= behind)
        self._inside, self._until = np.where(empty, self._behind, inside), np.where(empty, self._behind, until)
        self._cut_ends()

    def _cut_ends(self) -> None:
        """The parts with ends of rows, one band for each run of keys."""
        edges, run_of = self.placement.edges, self.placement.run_of
        item, run = [], []
        for first, behind in ((self._first, self._inside), (self._until, self._behind)):
            owner, number = spread(run_of(first), np.where(first < behind, np.searchsorted(edges, behind), 0))
            item.append(owner)
            run.append(number)
        left, self._end_item, self._end_run = len(item[0]), np.concatenate(item), np.concatenate(run)
        at = self._end_item
        first, behind = self._first[at], self._behind[at]
        behind[:left], first[left:] = self._inside[at[:left]], self._until[at[left:]]
        first, behind = np.maximum(first, edges[self._end_run]), np.minimum(behind, edges[self._end_run + 1])
        self._ends = np.stack([self._q0[at], self._q1[at], first, behind, self._lo[at], self._hi[at]], axis=1)

    @cached_property
    def _full_keys(self) -> tuple[np.ndarray, np.ndarray]:
        """The columns that all rows see, as indices into what each rank holds, (n, P) each."""
        return self.placement.before(self._inside), self.placement.before(self._until)

    @cached_property
    def areas(self) -> np.ndarray:
        world, owner = self.placement.world, self.placement.owner
        first, behind = self._full_keys
        total = by_rank(np.add, self._rank, (behind - first) * (self._q1 - self._q0)[:, None], world, 0)
        pair = self._rank[self._end_item] * world + owner[self._end_run]
        return total + np.bincount(pair, areas(self._ends), world * world).astype(np.int64).reshape(world, world)

    @cached_property
    def meetings(self) -> np.ndarray:
        world, (first, behind) = self.placement.world, self._full_keys
        q0, q1, begin, end, lo, hi = self._ends.T
        of_ends = np.maximum(np.minimum(q1, end - lo) - np.maximum(q0, begin - hi), 0)
        place = self._end_item * world + self.placement.owner[self._end_run]
        at_ends = np.bincount(place, of_ends, first.size).astype(np.int64).reshape(first.shape)
        num_rows = (self._q1 - self._q0)[:, None]
        return by_rank(np.add, self._rank, np.where(first < behind, num_rows, np.minimum(at_ends, num_rows)), world, 0)

    @cached_property
    def needs(self) -> TokenRanges:
        return TokenRanges.union(self._rank, self._first, self._behind, self.placement.seqlen)

    def local(self, rank: int, keys: Sequence[KeyRange]) -> Mask:
        buffer = KeyBuffer(keys)
        begin, end = np.searchsorted(self._rank, [rank, rank + 1])
        full_first, full_behind = (side[begin:end][:, buffer.sources] for side in self._full_keys)
        item, number = np.nonzero(full_first < full_behind)
        infinite = np.full(len(item), INF)
        full = np.stack([self._q0[begin + item], self._q1[begin + item], full_first[item, number], full_behind[item, number],
                         -infinite, infinite], axis=1)
        to_rows = (self.placement.offset - self.placement.edges[:-1])
        full = buffer.place(moved(full, to_rows[self._run[begin + item]], 0), buffer.sources[number])
        ends, source, group = self._local_ends(begin, end, buffer, to_rows)
        bands = np.concatenate([full, buffer.place(ends, source)])
        group = np.concatenate([self._group[begin + item], group])
        return self._of_bands(rank, keys, [joined(bands[group == number]) for number in range(self.mask.num_groups)])

    def _local_ends(self, begin: int, end: int, buffer: KeyBuffer, to_rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Bands with ends of rows over what each source holds, with their sources and head groups."""
        source = self.placement.owner[self._end_run]
        mine = np.flatnonzero((self._end_item >= begin) & (self._end_item < end) & np.isin(source, buffer.sources))
        item, run = self._end_item[mine], self._end_run[mine]
        bands, kept = tight(self._ends[mine])
        item, run = item[kept], run[kept]
        return moved(bands, to_rows[self._run[item]], to_rows[run]), source[mine][kept], self._group[item]

