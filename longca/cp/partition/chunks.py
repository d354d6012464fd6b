"""Partitions of band masks by chunks of tokens.

The rows of each band are first divided at the edges of chunks. The columns of such a piece have three parts:

        left ends    inside     right ends
       ·  ·  · ┌──┬────────────┬──┐
       ·  · ┌──┘  │ all rows   │ ┌┘        inside: all rows see these keys, so it is a rectangle on every rank that holds some
       · ┌──┘     │ see these  │┌┘                 of them (a rank holds its tokens in the order of the sequence)
       └─┴────────┴────────────┴┘          ends: divided once more, at the edges of the chunks of keys
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from longca.cp.partition.mask_partition import (
    KvLayout,
    MaskPartition,
    join_rectangles,
    shift_bands,
    tagged_bands,
)
from longca.cp.partition.sharding import ChunkedSharding, TokenRanges, by_rank
from longca.masks.band import INF, areas, tight
from longca.masks.mask import Mask
from longca.masks.ragged import spread

if TYPE_CHECKING:
    from longca.cp.partition.mask_partition import KvRange


class ChunkedPartition(MaskPartition):
    """A band mask on a chunked sharding. A "piece" is the part of one band on one chunk of queries; pieces
    are sorted by rank."""

    sharding: ChunkedSharding

    def __init__(self, mask: Mask, sharding: ChunkedSharding) -> None:
        super().__init__(mask, sharding)
        edges = sharding.edges
        bands, group = tagged_bands(mask)
        q0, q1, k0, k1, lo, hi = bands.T
        band, chunk = spread(sharding.chunk_of(q0), np.searchsorted(edges, q1))
        order = np.argsort(sharding.owner[chunk], kind="stable")
        band, chunk = band[order], chunk[order]
        self._group, self._chunk, self._rank = group[band], chunk, sharding.owner[chunk]
        k0, k1, self._lo, self._hi = k0[band], k1[band], lo[band], hi[band]
        self._q0, self._q1 = np.maximum(q0[band], edges[chunk]), np.minimum(q1[band], edges[chunk + 1])
        # columns that some row sees: all of them, since every row of a normal band sees a key
        self._start, self._end = np.maximum(k0, self._q0 + self._lo), np.minimum(k1, self._q1 + self._hi)
        # columns that all rows see, reduced to whole chunks at ragged ends
        start, end = np.maximum(k0, self._q1 - 1 + self._lo), np.minimum(k1, self._q0 + self._hi + 1)
        inner_start = np.where(
            start > k0, edges[np.minimum(np.searchsorted(edges, start), len(edges) - 1)], k0
        )
        inner_end = np.where(
            end < k1, edges[np.maximum(np.searchsorted(edges, end, side="right") - 1, 0)], k1
        )
        empty = (inner_start >= inner_end) | (start >= end)
        self._inner_start, self._inner_end = (
            np.where(empty, self._end, inner_start),
            np.where(empty, self._end, inner_end),
        )
        self._divide_ends()

    def _divide_ends(self) -> None:
        """Divides the columns left and right of the inner ones, which contain the row ends, into one band for
        each chunk of keys."""
        edges, chunk_of = self.sharding.edges, self.sharding.chunk_of
        pieces, chunks = [], []
        for start, end in ((self._start, self._inner_start), (self._inner_end, self._end)):
            piece, chunk = spread(chunk_of(start), np.where(start < end, np.searchsorted(edges, end), 0))
            pieces.append(piece)
            chunks.append(chunk)
        num_left, self._end_piece, self._end_chunk = (
            len(pieces[0]),
            np.concatenate(pieces),
            np.concatenate(chunks),
        )
        at = self._end_piece
        start, end = self._start[at], self._end[at]
        end[:num_left], start[num_left:] = self._inner_start[at[:num_left]], self._inner_end[at[num_left:]]
        start, end = np.maximum(start, edges[self._end_chunk]), np.minimum(end, edges[self._end_chunk + 1])
        self._ends = np.stack([self._q0[at], self._q1[at], start, end, self._lo[at], self._hi[at]], axis=1)

    @cached_property
    def _inner_keys(self) -> tuple[np.ndarray, np.ndarray]:
        """(start, end) of the keys that all rows of a piece see, as local indices of each rank, (n, P)
        each."""
        return self.sharding.num_before(self._inner_start), self.sharding.num_before(self._inner_end)

    @cached_property
    def areas(self) -> np.ndarray:
        world, owner = self.sharding.world, self.sharding.owner
        start, end = self._inner_keys
        total = by_rank(np.add, self._rank, (end - start) * (self._q1 - self._q0)[:, None], world, 0)
        pair = self._rank[self._end_piece] * world + owner[self._end_chunk]
        return total + np.bincount(pair, areas(self._ends), world * world).astype(np.int64).reshape(
            world, world
        )

    @cached_property
    def band_rows(self) -> np.ndarray:
        world, (start, end) = self.sharding.world, self._inner_keys
        q0, q1, k0, k1, lo, hi = self._ends.T
        of_ends = np.maximum(np.minimum(q1, k1 - lo) - np.maximum(q0, k0 - hi), 0)
        place = self._end_piece * world + self.sharding.owner[self._end_chunk]
        at_ends = np.bincount(place, of_ends, start.size).astype(np.int64).reshape(start.shape)
        num_rows = (self._q1 - self._q0)[:, None]
        return by_rank(
            np.add, self._rank, np.where(start < end, num_rows, np.minimum(at_ends, num_rows)), world, 0
        )

    @cached_property
    def needed_keys(self) -> TokenRanges:
        return TokenRanges.union(self._rank, self._start, self._end, self.sharding.seqlen)

    def local_mask(self, rank: int, keys: Sequence[KvRange]) -> Mask:
        layout = KvLayout(keys)
        first, last = np.searchsorted(self._rank, [rank, rank + 1])
        full_start, full_end = (side[first:last][:, layout.owners] for side in self._inner_keys)
        piece, number = np.nonzero(full_start < full_end)
        infinite = np.full(len(piece), INF)
        full = np.stack(
            [
                self._q0[first + piece],
                self._q1[first + piece],
                full_start[piece, number],
                full_end[piece, number],
                -infinite,
                infinite,
            ],
            axis=1,
        )
        # of each chunk: from a token to its local index
        to_local = self.sharding.offset - self.sharding.edges[:-1]
        full = layout.place(shift_bands(full, to_local[self._chunk[first + piece]], 0), layout.owners[number])
        ends, owner, group = self._local_ends(first, last, layout, to_local)
        bands = np.concatenate([full, layout.place(ends, owner)])
        group = np.concatenate([self._group[first + piece], group])
        return self._mask_of_bands(
            rank, keys, [join_rectangles(bands[group == number]) for number in range(self.mask.num_groups)]
        )

    def _local_ends(
        self, first: int, last: int, layout: KvLayout, to_local: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(bands with ends of rows in local indices, their owners, their head groups), of the pieces
        first..last."""
        owner, wanted = self.sharding.owner[self._end_chunk], np.zeros(self.sharding.world, dtype=bool)
        wanted[layout.owners] = True
        mine = np.flatnonzero((self._end_piece >= first) & (self._end_piece < last) & wanted[owner])
        piece, chunk = self._end_piece[mine], self._end_chunk[mine]
        bands, kept = tight(self._ends[mine])
        piece, chunk = piece[kept], chunk[kept]
        return (
            shift_bands(bands, to_local[self._chunk[piece]], to_local[chunk]),
            owner[mine][kept],
            self._group[piece],
        )
