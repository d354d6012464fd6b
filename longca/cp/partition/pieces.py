"""The pieces of a mask's bands on the chunks of a sharding, whose three parts
`longca.cp.partition.mask_partition` explains.

Shapes: P ranks, n pieces.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from longca.cp.partition.sharding import TokenRanges, by_rank
from longca.masks.band import areas, spread

if TYPE_CHECKING:
    from longca.cp.partition.sharding import ChunkedSharding


class BandPieces:
    """A "piece" is the part of one band on one chunk of queries. All arrays are of pieces, sorted by rank."""

    def __init__(self, bands: np.ndarray, group: np.ndarray, sharding: ChunkedSharding) -> None:
        """
        Args:
            bands, group: bands of all head groups, and the group of each.
        """
        self._sharding = sharding
        edges = sharding.edges
        q0, q1, k0, k1, lo, hi = bands.T
        band, chunk = spread(sharding.chunk_of(q0), np.searchsorted(edges, q1))
        order = np.argsort(sharding.row[chunk], kind="stable")
        band = band[order]
        chunk = chunk[order]
        self.group = group[band]
        self.chunk = chunk
        self.rank = sharding.row[chunk]
        k0 = k0[band]
        k1 = k1[band]
        self.lo = lo[band]
        self.hi = hi[band]
        self.q0 = np.maximum(q0[band], edges[chunk])
        self.q1 = np.minimum(q1[band], edges[chunk + 1])
        # columns that some row sees: all of them, since every row of a normal band sees a key
        self.start, self.end = np.maximum(k0, self.q0 + self.lo), np.minimum(k1, self.q1 + self.hi)
        # columns that all rows see, reduced to whole chunks at ragged ends
        start = np.maximum(k0, self.q1 - 1 + self.lo)
        end = np.minimum(k1, self.q0 + self.hi + 1)
        inner_start = np.where(
            start > k0, edges[np.minimum(np.searchsorted(edges, start), len(edges) - 1)], k0
        )
        inner_end = np.where(
            end < k1, edges[np.maximum(np.searchsorted(edges, end, side="right") - 1, 0)], k1
        )
        empty = (inner_start >= inner_end) | (start >= end)
        self.inner_start, self.inner_end = (
            np.where(empty, self.end, inner_start),
            np.where(empty, self.end, inner_end),
        )
        self._divide_ends()

    def _divide_ends(self) -> None:
        """Divides the columns left and right of the inner ones, which contain the row ends, into one band for
        each chunk of keys."""
        edges = self._sharding.edges
        chunk_of = self._sharding.chunk_of
        pieces = []
        chunks = []
        for start, end in ((self.start, self.inner_start), (self.inner_end, self.end)):
            piece, chunk = spread(chunk_of(start), np.where(start < end, np.searchsorted(edges, end), 0))
            pieces.append(piece)
            chunks.append(chunk)
        num_left, self.end_piece, self.end_chunk = (
            len(pieces[0]),
            np.concatenate(pieces),
            np.concatenate(chunks),
        )
        at = self.end_piece
        start = self.start[at]
        end = self.end[at]
        end[:num_left], start[num_left:] = self.inner_start[at[:num_left]], self.inner_end[at[num_left:]]
        start = np.maximum(start, edges[self.end_chunk])
        end = np.minimum(end, edges[self.end_chunk + 1])
        self.ends = np.stack([self.q0[at], self.q1[at], start, end, self.lo[at], self.hi[at]], axis=1)

    @cached_property
    def inner_keys(self) -> tuple[np.ndarray, np.ndarray]:
        """(start, end) of the keys that all rows of a piece see, as local indices of each rank, (n, P)
        each."""
        return self._sharding.num_before(self.inner_start), self._sharding.num_before(self.inner_end)

    @cached_property
    def areas(self) -> np.ndarray:
        """As in `MaskPartition`, (rows of ranks, P)."""
        world = self._sharding.world
        num_rows = self._sharding.num_rows
        owner = self._sharding.owner
        start, end = self.inner_keys
        total = by_rank(np.add, self.rank, (end - start) * (self.q1 - self.q0)[:, None], num_rows, 0)
        pair = self.rank[self.end_piece] * world + owner[self.end_chunk]
        return total + np.bincount(pair, areas(self.ends), total.size).astype(np.int64).reshape(total.shape)

    @cached_property
    def band_rows(self) -> np.ndarray:
        """As in `MaskPartition`, (rows of ranks, P)."""
        world = self._sharding.world
        start, end = self.inner_keys
        q0, q1, k0, k1, lo, hi = self.ends.T
        of_ends = np.maximum(np.minimum(q1, k1 - lo) - np.maximum(q0, k0 - hi), 0)
        place = self.end_piece * world + self._sharding.owner[self.end_chunk]
        at_ends = np.bincount(place, of_ends, start.size).astype(np.int64).reshape(start.shape)
        num_rows = (self.q1 - self.q0)[:, None]
        return by_rank(
            np.add,
            self.rank,
            np.where(start < end, num_rows, np.minimum(at_ends, num_rows)),
            self._sharding.num_rows,
            0,
        )

    @cached_property
    def needed_keys(self) -> TokenRanges:
        """As in `MaskPartition`."""
        return TokenRanges.union(self.rank, self.start, self.end, int(self._sharding.edges[-1]))
