"""Partitions of band masks on chunked shardings.

The rows of each band are first divided at the edges of chunks. The columns of such a piece have three parts:

        left ends    inside     right ends
       ·  ·  · ┌──┬────────────┬──┐
       ·  · ┌──┘  │ all rows   │ ┌┘        inside: all rows see these keys, so it is a rectangle on every rank that holds some
       · ┌──┘     │ see these  │┌┘                 of them (a rank holds its tokens in the order of the sequence)
       └─┴────────┴────────────┴┘          ends: divided once more, at the edges of the chunks of keys

**Several shardings.** Partitions of one mask on several shardings are counted in one pass, since most of the time of
a small partition is that of starting NumPy's operations. The shardings lie one behind the other on an axis of
tokens, with a gap of one token between them, which no rank has and no band sees:

    token                0 1 2 3 4 5   6   7 8 9 …
    sharding             0 0 0 0 0 0  gap  1 1 1 …
    column: its rank     0 0 0 1 1 1       0 1 0 …
    row                  0 0 0 1 1 1       2 3 2 …     of P · sharding + rank

Shapes: J shardings, P ranks, n pieces.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from longca.cp.partition.mask_partition import KvLayout, MaskPartition, tagged_bands
from longca.cp.partition.sharding import ChunkedSharding, TokenRanges, by_rank
from longca.masks import Mask
from longca.masks.band import INF, K0, K1, Q0, Q1, areas, join_rectangles, shift, spread, tight

if TYPE_CHECKING:
    from longca.cp.partition.mask_partition import KvRange

MOST_RANKS = 16  # with more, counting takes longer than starting the operations


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


class ChunkedPartition(MaskPartition):
    """A band mask on a chunked sharding."""

    sharding: ChunkedSharding

    @cached_property
    def _pieces(self) -> BandPieces:
        return BandPieces(*tagged_bands(self.mask), self.sharding)

    @cached_property
    def areas(self) -> np.ndarray:
        return self._pieces.areas if self.sharding.world > 1 else np.array([[self.mask.area]])

    @cached_property
    def band_rows(self) -> np.ndarray:
        if self.sharding.world > 1:
            return self._pieces.band_rows
        return np.array([[sum(int((bands[:, Q1] - bands[:, Q0]).sum()) for bands in self.mask.groups)]])

    @cached_property
    def needed_keys(self) -> TokenRanges:
        return self._pieces.needed_keys

    def local_mask(self, rank: int, keys: Sequence[KvRange]) -> Mask:
        layout = KvLayout(keys)
        pieces = self._pieces
        first, last = np.searchsorted(pieces.rank, [rank, rank + 1])
        full_start, full_end = (side[first:last][:, layout.owners] for side in pieces.inner_keys)
        piece, number = np.nonzero(full_start < full_end)
        infinite = np.full(len(piece), INF)
        full = np.stack(
            [
                pieces.q0[first + piece],
                pieces.q1[first + piece],
                full_start[piece, number],
                full_end[piece, number],
                -infinite,
                infinite,
            ],
            axis=1,
        )
        # of each chunk: from a token to its local index
        to_local = self.sharding.offset - self.sharding.edges[:-1]
        full = layout.place(shift(full, to_local[pieces.chunk[first + piece]], 0), layout.owners[number])
        ends, owner, group = self._local_ends(first, last, layout, to_local)
        bands = np.concatenate([full, layout.place(ends, owner)])
        group = np.concatenate([pieces.group[first + piece], group])
        return self._mask_of_bands(
            rank, keys, [join_rectangles(bands[group == number]) for number in range(self.mask.num_groups)]
        )

    def _local_ends(
        self, first: int, last: int, layout: KvLayout, to_local: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(bands with ends of rows in local indices, their owners, their head groups), of the pieces
        first..last."""
        pieces = self._pieces
        owner = self.sharding.owner[pieces.end_chunk]
        wanted = np.zeros(self.sharding.world, dtype=bool)
        wanted[layout.owners] = True
        mine = np.flatnonzero((pieces.end_piece >= first) & (pieces.end_piece < last) & wanted[owner])
        piece = pieces.end_piece[mine]
        chunk = pieces.end_chunk[mine]
        bands, kept = tight(pieces.ends[mine])
        piece = piece[kept]
        chunk = chunk[kept]
        return (
            shift(bands, to_local[pieces.chunk[piece]], to_local[chunk]),
            owner[mine][kept],
            pieces.group[piece],
        )


class JointSharding(ChunkedSharding):
    """Several chunked shardings of as many tokens and ranks, as one with J · P rows and P columns."""

    def __init__(self, shardings: Sequence[ChunkedSharding]) -> None:
        first = shardings[0]
        self.name = " + ".join(sharding.name for sharding in shardings)
        self.seqlen = first.seqlen
        self.world = first.world
        self.num_rows = len(shardings) * self.world
        self.starts = np.arange(len(shardings)) * (self.seqlen + 1)
        """the first token of each sharding, (J,)"""
        self.edges = np.concatenate(
            [start + sharding.edges for start, sharding in zip(self.starts, shardings, strict=True)]
            + [self.starts[-1:] + self.seqlen + 1]
        )
        # a gap is a chunk, with all tokens of its sharding before it; it has no tokens, so any owner will do
        gap = np.zeros(1, dtype=np.int64)
        self.owner = np.concatenate([part for sharding in shardings for part in (sharding.owner, gap)])
        number = np.repeat(np.arange(len(shardings)), [len(sharding.edges) for sharding in shardings])
        self.row = self.owner + number * self.world
        self._before_edges = np.concatenate([sharding._before_edges for sharding in shardings])
        self._before_edges = np.concatenate([self._before_edges, self._before_edges[-1:]])


def partition_jointly(mask: Mask, shardings: Sequence[ChunkedSharding]) -> list[ChunkedPartition]:
    """The partitions of a band mask on shardings of as many ranks, with their counts. All else is derived on
    demand."""
    partitions = [ChunkedPartition(mask, sharding) for sharding in shardings]
    if len(shardings) < 2 or shardings[0].world > MOST_RANKS:
        return partitions
    joint = JointSharding(shardings)
    bands, group = tagged_bands(mask)
    apart = np.repeat(joint.starts, len(bands))[:, None]
    bands = np.tile(bands, (len(shardings), 1))
    bands[:, [Q0, Q1, K0, K1]] += apart
    pieces = BandPieces(bands, np.tile(group, len(shardings)), joint)
    visible = pieces.areas
    needed = pieces.needed_keys
    sees = visible > 0
    start, end = joint.hulls(needed)
    counts = (
        visible,
        pieces.band_rows,
        np.where(sees, joint.count_in(needed), 0),
        np.where(sees, start, joint.seqlen),
        np.where(sees, end, 0),
    )
    world = joint.world
    for number, partition in enumerate(partitions):
        partition.set_counts(*(table[number * world : (number + 1) * world] for table in counts))
    return partitions
