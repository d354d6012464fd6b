"""The rows of each work tile of keys, from the bands of a mask, in little time: for predictions of a plan.

It counts what the plan's tables will hold, and does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from longca.masks.band import HI, K0, K1, LO, Q0, Q1

TILE = 128  # keys of a work tile
BLOCK = 64  # rows of a block
FAR = 1 << 40  # beyond any row
PAIRS = 1 << 17  # of segments that are compared at once


def tiles_of_bands(
    bands: np.ndarray, size: int = TILE
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(work tile of `size` keys, number of the band, first row of the band that sees some of its keys, the
    row after the last one) of each work tile that a band overlaps, band after band. No row sees any where the
    first is not before the last.

    Args:
        bands: (n, 6).
    """
    starts = bands[:, K0] // size
    counts = np.maximum(-(-bands[:, K1] // size) - starts, 0)  # tiles that a band overlaps
    tile = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts - starts, counts)
    number = np.repeat(np.arange(len(bands)), counts)
    of_tile = bands[number]
    begin = np.maximum(of_tile[:, Q0], np.maximum(of_tile[:, K0], tile * size) - of_tile[:, HI])
    end = np.minimum(of_tile[:, Q1], np.minimum(of_tile[:, K1], (tile + 1) * size) - of_tile[:, LO])
    return tile, number, begin, end


@dataclass(frozen=True, eq=False)
class TileRows:
    """The work tiles of one head group, from the last keys to the first, and the rows that see their keys.

    With transposed bands, rows are keys.
    """

    num_rows: int
    num_tiles: int
    tile: np.ndarray
    """(S,) work tile of each segment: neighbouring rows that see some of its keys; sorted"""
    first: np.ndarray
    """(S,) first row of each segment"""
    end: np.ndarray
    """(S,) the row after its last one"""
    full: np.ndarray
    """(2, F) work tile, number of neighbouring rows that see all of its keys"""

    @classmethod
    def of(cls, bands: np.ndarray, num_rows: int, num_keys: int, size: int = TILE) -> TileRows:
        """The work tiles of so many keys each, of (n, 6) bands."""
        num_tiles = -(-num_keys // size)
        tile, number, begin, end = tiles_of_bands(bands, size)
        q0, q1, k0, k1, lo, hi = (bands[number, column] for column in (Q0, Q1, K0, K1, LO, HI))
        # rows that see all keys of the work tile
        last_key = np.minimum((tile + 1) * size, num_keys) - 1
        all_begin = np.maximum(q0, last_key - hi)
        all_end = np.minimum(q1, tile * size - lo + 1)
        full = (k0 <= tile * size) & (k1 > last_key) & (all_begin < all_end)
        full = np.stack([num_tiles - 1 - tile[full], (all_end - all_begin)[full]])
        seen = begin < end
        tile = num_tiles - 1 - tile[seen]
        begin = begin[seen] + tile * FAR
        order = np.argsort(begin, kind="stable")
        begin = begin[order]
        tile = tile[order]
        reach = np.maximum.accumulate(end[seen][order] + tile * FAR)
        new = np.append(True, begin[1:] > reach[:-1])[: len(tile)]
        last = np.append(np.flatnonzero(new)[1:] - 1, len(tile) - 1)[: new.sum()]
        tile = tile[new]
        return cls(num_rows, num_tiles, tile, begin[new] - tile * FAR, reach[last] - tile * FAR, full)

    @cached_property
    def blocks(self) -> np.ndarray:
        """(tiles,) blocks of each work tile, at least 1."""
        return np.maximum(self.blocks_of(BLOCK), 1)

    def blocks_of(self, size: int) -> np.ndarray:
        """(tiles,) blocks of so many rows of each work tile."""
        return np.bincount(self.tile, -((self.first - self.end) // size), self.num_tiles)

    def num_partial(self, size: int) -> int:
        """Partial blocks of so many rows, of all work tiles, up to the alignment of full ones."""
        return int(self.blocks_of(size).sum() - (self.full[1] // size).sum())

    @cached_property
    def is_in_order(self) -> bool:
        """True if no work tile begins at an earlier row than one of earlier keys."""
        begins = np.full(self.num_tiles, FAR)
        np.minimum.at(begins, self.tile, self.first)
        begins = begins[begins < FAR]
        return bool((begins[1:] <= begins[:-1]).all())

    @cached_property
    def stores_first(self) -> bool:
        """True if blocks of all work tiles begin at multiples of their size, and every row sees a key: the
        first addends to dQ need no zeros."""
        if (self.first % BLOCK).any():
            return False
        order = np.argsort(self.first)
        reach = np.maximum.accumulate(np.append(0, self.end[order]))
        return bool((self.first[order] <= reach[:-1]).all() and reach[-1] >= self.num_rows)

    @cached_property
    def predecessors(self) -> list[list[tuple[int, int]]]:
        """For each work tile, the earlier ones behind which it must stay, each with the least number of
        blocks between their beginnings.

        It must stay behind the latest one that has its first rows; and, where several begin together, it
        passes there after the last of them.
        """
        latest = self._latest_before()
        begins = np.flatnonzero(latest >= 0)
        passes, passed, rows = self._passing()
        mine = np.append(begins, passes)
        other = np.append(latest[begins], passed)
        distance = self._distance(mine, other, np.append(self.first[begins], rows))
        return self._by_tile(mine, self.tile[other], distance)

    @cached_property
    def shared_rows(self) -> list[list[tuple[int, int]]]:
        """For each work tile, the rows that it shares with the one before it, segment by segment: (blocks
        between the beginnings of both if they are at the same row together, blocks of the shared rows)."""
        # each segment with all segments of the tile before
        begin, end = np.searchsorted(self.tile, [self.tile - 1, self.tile])
        counts = end - begin
        mine = np.repeat(np.arange(len(self.tile)), counts)
        other = np.arange(len(mine)) - np.repeat(np.cumsum(counts) - counts - begin, counts)
        row = np.maximum(self.first[mine], self.first[other])
        rows = np.minimum(self.end[mine], self.end[other]) - row
        mine, other, row, rows = (x[rows > 0] for x in (mine, other, row, rows))
        return self._by_tile(mine, self._distance(mine, other, row), -(-rows // BLOCK))

    @cached_property
    def returned_blocks(self) -> int:
        """Blocks of rows that an earlier work tile has, but not the one before, of all work tiles."""
        shared = sum(blocks for of_tile in self.shared_rows for _, blocks in of_tile)
        return max(int(self.blocks.sum()) - shared - -(-self.num_rows // BLOCK), 0)

    @cached_property
    def _blocks_before(self) -> np.ndarray:
        """(S,) blocks of the work tile before each segment."""
        sizes = -((self.first - self.end) // BLOCK)
        before = np.cumsum(sizes) - sizes
        return before - before[np.searchsorted(self.tile, self.tile)]

    def _distance(self, mine: np.ndarray, other: np.ndarray, row: np.ndarray) -> np.ndarray:
        """Blocks from the beginning of the other segments' work tiles to that of these segments' if both are
        at a row together."""
        of_other = self._blocks_before[other] + (row - self.first[other]) // BLOCK
        return of_other - self._blocks_before[mine] - (row - self.first[mine]) // BLOCK

    def _by_tile(self, segment: np.ndarray, *numbers: np.ndarray) -> list[list[tuple[int, int]]]:
        """Two numbers of each segment, as pairs of its work tile."""
        result: list[list[tuple[int, int]]] = [[] for _ in range(self.num_tiles)]
        first, second = (number.tolist() for number in numbers)
        for tile, pair in zip(self.tile[segment].tolist(), zip(first, second, strict=True), strict=True):
            result[tile].append(pair)
        return result

    def _latest_before(self) -> np.ndarray:
        """(S,) the last segment of an earlier work tile that has the first row of each segment; -1: none."""
        num_segments = len(self.tile)
        kind = np.int32 if self.num_rows < 1 << 31 else np.int64
        rows = self.first.astype(kind)[:, None]
        # from the last one, so that `argmax` stops at it
        first, end = self.first.astype(kind)[::-1].copy(), self.end.astype(kind)[::-1].copy()
        latest = np.empty(num_segments, np.int64)
        for here in _parts(num_segments, num_segments):
            # up to the last segment here; those of one tile have no row in common
            these = slice(num_segments - here.stop, None)
            covers = (first[these] <= rows[here]) & (rows[here] < end[these])
            size = here.stop - here.start
            covers[:, :size] &= np.tri(size, k=-1, dtype=bool)[:, ::-1]  # only earlier ones
            last = covers.argmax(1)
            latest[here] = np.where(covers[np.arange(size), last], here.stop - 1 - last, -1)
        return latest

    def _passing(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(segment, segment of an earlier tile, row) where the first one passes a row at which several
        segments begin, next after the second one."""
        begins, counts = np.unique(self.first, return_counts=True)
        rows = begins[counts > 1]
        passes = [np.empty((3, 0), np.int64)]
        for here in _parts(len(rows), len(self.tile)):
            row = rows[here, None]
            number, covering = ((self.first <= row) & (row < self.end)).nonzero()
            row = row[number, 0]
            next_of_row = (number[1:] == number[:-1]) & (self.first[covering[1:]] < row[1:])
            next_of_row &= self.tile[covering[1:]] != self.tile[covering[:-1]]
            passes.append(np.stack([covering[1:], covering[:-1], row[1:]])[:, next_of_row])
        mine, other, at = np.concatenate(passes, 1)
        return mine, other, at


def _parts(num_rows: int, num_columns: int) -> list[slice]:
    """Rows of a table, so many at a time that they stay in a cache."""
    step = max(PAIRS // max(num_columns, 1), 1)
    return [slice(start, min(start + step, num_rows)) for start in range(0, num_rows, step)]
