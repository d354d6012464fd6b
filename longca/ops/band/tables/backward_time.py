"""Predicted times of the ways to band attention's gradients on Hopper: amounts of work, and their costs.

A way is two kernels, or one pass from the first row with some KV heads at once. One pass is simulated item by
item: an item is a work tile of one query head, or of a few.

    begins     when a program is free, and so late that it stays behind the tiles that add to the same rows of
               dQ before it
    computes   START, and one step for each block of 64 rows
    ends       after it has added dK and dV, for which it waits until the query head before has added its own

The simulation ends after WAVES items for each program; the remaining heads take as long as the latest ones,
in proportion. It does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from heapq import heapreplace

import numpy as np

from longca.masks.band import HI, K0, K1, LO, Q0, Q1

TILE = 128  # keys of a work tile
BLOCK = 64  # rows of a block
PROGRAMS = 132  # multiprocessors of an H100 and of an H200
# of one pass, in blocks: the start of an item, the addition of its dK and dV, and the distance at which a work
# tile follows another one through the rows
START = 2.0
FINISH = 3.0
DISTANCE = 1.5
WAVES = 4
FAR = 1 << 40  # beyond any row
MANY_PAIRS = 1 << 17  # of segments and work tiles, compared at once


@dataclass(frozen=True, eq=False)
class KeyTiles:
    """The work tiles of one head group, from the last keys to the first, and the rows that see their keys."""

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
    def of(cls, bands: np.ndarray, num_rows: int, num_keys: int, size: int = TILE) -> KeyTiles:
        num_tiles = -(-num_keys // size)
        starts = bands[:, K0] // size
        counts = np.maximum(-(-bands[:, K1] // size) - starts, 0)  # tiles that a band overlaps
        tile = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts - starts, counts)
        of_band = np.repeat(np.arange(len(bands)), counts)
        q0, q1, k0, k1, lo, hi = (bands[of_band, column] for column in (Q0, Q1, K0, K1, LO, HI))
        begin = np.maximum(q0, np.maximum(k0, tile * size) - hi)
        end = np.minimum(q1, np.minimum(k1, (tile + 1) * size) - lo)
        # rows that see all keys of the work tile
        all_begin = np.maximum(q0, np.minimum((tile + 1) * size, num_keys) - 1 - hi)
        all_end = np.minimum(q1, tile * size - lo + 1)
        full = (k0 <= tile * size) & (k1 >= np.minimum((tile + 1) * size, num_keys)) & (all_begin < all_end)
        full_tile = num_tiles - 1 - tile[full]
        full_rows = (all_end - all_begin)[full]
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
        return cls(
            num_rows,
            num_tiles,
            tile,
            begin[new] - tile * FAR,
            reach[last] - tile * FAR,
            np.stack([full_tile, full_rows]),
        )

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
    def stores_first(self) -> bool:
        """True if blocks of all work tiles begin at multiples of their size, and every row sees a key: the
        first addends to dQ need no zeros."""
        if (self.first % BLOCK).any():
            return False
        order = np.argsort(self.first)
        reach = np.maximum.accumulate(np.append(0, self.end[order]))
        return bool((self.first[order] <= reach[:-1]).all() and reach[-1] >= self.num_rows)

    @cached_property
    def predecessors(self) -> list[list[tuple[int, float]]]:
        """For each work tile, the earlier ones behind which it must stay, each with the least number of
        blocks between their beginnings."""
        num_tiles = self.num_tiles
        sizes = -((self.first - self.end) // BLOCK)
        # blocks of the work tile before each segment
        before = np.cumsum(sizes) - sizes
        before -= before[np.searchsorted(self.tile, self.tile)]
        result: list[list[tuple[int, float]]] = [[] for _ in range(num_tiles)]
        count = len(self.tile)
        step = max(MANY_PAIRS // max(count, 1), 1)
        for start in range(0, count, step):
            part = slice(start, start + step)
            row = self.first[part, None]
            covers = (self.first <= row) & (row < self.end) & (self.tile < self.tile[part, None])
            latest = np.where(covers, np.arange(count), -1).max(1)
            mine = np.flatnonzero(latest >= 0)
            other = latest[mine]
            mine += start
            shift = before[other] + (self.first[mine] - self.first[other]) // BLOCK - before[mine]
            for tile, predecessor, blocks in zip(
                self.tile[mine].tolist(), self.tile[other].tolist(), shift.tolist(), strict=True
            ):
                result[tile].append((predecessor, blocks + DISTANCE))
        # where several work tiles begin together, another one that passes there comes after the last of them
        begins, counts = np.unique(self.first, return_counts=True)
        for row in begins[counts > 1].tolist():
            covering = np.flatnonzero((self.first <= row) & (row < self.end))
            passing = np.flatnonzero(self.first[covering[1:]] < row) + 1
            for mine, other in zip(covering[passing].tolist(), covering[passing - 1].tolist(), strict=True):
                if self.tile[mine] != self.tile[other]:
                    shift = before[other] + (row - self.first[other]) // BLOCK
                    shift -= before[mine] + (row - self.first[mine]) // BLOCK
                    result[self.tile[mine]].append((int(self.tile[other]), float(shift) + DISTANCE))
        return result


def one_pass_blocks(
    tiles: KeyTiles, num_kv_heads: int, head_rounds: int, heads_per_item: int, at_once: tuple[int, int]
) -> float:
    """Blocks that a multiprocessor computes in one pass from the first row, and for which it waits.

    Args:
        head_rounds: items of a work tile and KV head, of `heads_per_item` query heads each.
        at_once: KV heads whose work tiles start together, and items of each that do. KV heads proceed alike,
            so one of them is simulated on its share of the programs.
    """
    kv_heads, rounds = at_once
    num_tiles = tiles.num_tiles
    programs = max(PROGRAMS // kv_heads, 1)
    lengths = (tiles.blocks * heads_per_item + (START + FINISH)).tolist()
    work = list(zip(range(num_tiles), lengths, tiles.predecessors, strict=True))
    num_tasks = num_kv_heads // kv_heads * head_rounds * num_tiles // rounds  # of `rounds` items each
    wave = max(programs // rounds, 1)
    # whole waves are left out, at the beginning
    omitted = max((num_tasks // wave - WAVES) * wave, 0)
    free = [0.0] * programs
    begins = [[-1.0 * FAR] * num_tiles for _ in range(rounds)]
    ends = [0.0] * num_tiles
    busy = done = 0.0
    begun, first = divmod(omitted, num_tiles)
    for section in range(begun, num_tasks // num_tiles):
        if section * rounds % head_rounds == 0:
            ends = [0.0] * num_tiles
        if section == begun + 1 + wave // num_tiles:  # the first wave waits in another way
            busy = done = 0.0
        for tile, length, predecessors in work[first:]:
            for begin_of in begins:
                begin = time = free[0]
                for other, distance in predecessors:
                    if begin_of[other] + distance > time:
                        time = begin_of[other] + distance
                begin_of[tile] = time
                time += length
                if ends[tile] + FINISH > time:
                    time = ends[tile] + FINISH
                ends[tile] = time
                busy += time - begin
                done += length
                heapreplace(free, time)
        first = 0
    end = max(free)
    if omitted:
        earlier = (begun * sum(lengths) + sum(lengths[: omitted % num_tiles])) * rounds
        end += earlier * (busy / done) / programs
    return end * programs * kv_heads / PROGRAMS


def makespan(lengths: np.ndarray, heads: int, heads_at_once: int, longest: float) -> float:
    """Time until all items are done, each begun by the program that is free first.

    Args:
        lengths: of the items of one head.
        heads: with as many items each.
        heads_at_once: whose items start together, the longest first.
        longest: longer items are split into equal parts.
    """
    parts = np.maximum(np.ceil(lengths / longest), 1).astype(np.int64)
    items = np.repeat(np.sort(np.repeat(np.ceil(lengths / parts), parts))[::-1] + START, heads_at_once)
    num_items = len(items) * (heads // heads_at_once)
    omitted = max((num_items // PROGRAMS - WAVES) * PROGRAMS, 0)
    total = float(items.sum()) * (heads // heads_at_once)
    simulated = np.tile(items, -(-(num_items - omitted) // max(len(items), 1)))[omitted - num_items :].tolist()
    free = [0.0] * PROGRAMS
    for length in simulated:
        heapreplace(free, free[0] + length)
    return max(free) + (total - sum(simulated)) / PROGRAMS
