"""The order in which work tiles of keys add to dQ: the work tile for which each one must wait.

Floating-point sums depend on the order of their terms. With a fixed order, the fused backward kernel gives
the same bits in every run.
"""

from dataclasses import replace

import numpy as np
import torch

from longca.ops.band.tables.arrays import (
    Array,
    as_tensor,
    at_least,
    at_most,
    concat,
    counts_of,
    cumulative,
    distinct,
    flipped,
    host_view,
    largest_so_far,
    least_so_far,
    long,
    numbers,
    short,
    sort,
    stack,
    starts_of,
    sums_of,
    true_positions,
    where,
    zeros,
)
from longca.ops.band.tables.backward_rule import AddOrder
from longca.ops.band.tables.ranges import expand, segments
from longca.ops.band.tables.schedule import (
    FULL_START,
    NUM_FULL,
    PARTIAL_END,
    PARTIAL_START,
    ROW_START,
    TileSchedule,
)

FAR = 1 << 32  # beyond any column
WORD = 32  # work tiles that share a number, a bit each


def with_waits(schedule: TileSchedule, order: AddOrder) -> TileSchedule:
    """The same with `waits` and `wait_ranges`, in the order of the work tiles of a group. They must be whole
    row tiles."""
    waits = []
    wait_ranges = []
    num_waits = 0
    ranges = long(host_view(schedule.block_ranges))
    for work_tiles in long(host_view(schedule.work_tiles)):
        tile, entries = _of_group(work_tiles, ranges, schedule.tile_n, order)
        bounds = starts_of(tile, len(work_tiles)) + num_waits
        waits.append(entries)
        wait_ranges.append(stack([bounds[:-1], bounds[1:]], 1))
        num_waits += len(entries)
    return replace(
        schedule, waits=as_tensor(short(concat(waits))), wait_ranges=as_tensor(short(stack(wait_ranges)))
    )


def may_store_first(schedule: TileSchedule, num_rows: int, num_columns: int) -> bool:
    """True if work tiles cover all rows and columns in whole tiles and blocks, each at a multiple of its
    length.

    Args:
        num_rows, num_columns: of the mask, as the schedule sees it.
    """
    if len(schedule.work_tiles) > 1:
        return False
    (work_tiles,) = long(host_view(schedule.work_tiles))
    ranges = long(host_view(schedule.block_ranges))
    tile_n = schedule.tile_n
    rows = numbers(-(-num_rows // schedule.tile_m), ranges) * schedule.tile_m
    if len(work_tiles) != len(rows):
        return False
    _, start, end = _touched(work_tiles, ranges, tile_n)
    num_blocks = (work_tiles[:, NUM_FULL] + work_tiles[:, PARTIAL_END] - work_tiles[:, PARTIAL_START]).sum()
    num_cells = -(-num_columns // tile_n)
    # stretches that begin and end at each block
    begun, ended = (counts_of(at_most(edge // tile_n, num_cells), num_cells + 1) for edge in (start, end))
    right = stack(
        [
            (sort(work_tiles[:, ROW_START])[0] == rows).all(),
            (ranges[:, 0] % tile_n == 0).all(),
            (end - start).sum() == num_blocks * tile_n,
            (cumulative(begun - ended)[:-1] > 0).all(),
        ]
    )
    return bool(right.all())


def _of_group(work_tiles: Array, ranges: Array, tile_n: int, order: AddOrder) -> tuple[Array, Array]:
    """(work tile, (first column, work tile to wait for)) of each stretch of columns, from the right."""
    owner, start, end = _touched(work_tiles, ranges, tile_n)
    if len(owner) == 0:
        return owner, zeros((0, 2), work_tiles)
    if order is AddOrder.FROM_FIRST:
        start, end = -end, -start
    positions, cells = distinct(stack([start, end]))
    # launches dominate the time on a GPU, arithmetic on a CPU
    is_host = isinstance(owner, np.ndarray) or not owner.is_cuda
    stretches = changes_by_sets if is_host else changes_by_matrix
    tile, offset, before = stretches(owner, cells, len(work_tiles), len(positions))
    return tile, stack([positions[offset], before], 1)


def changes_by_matrix(
    owner: Array, cells: Array, num_tiles: int, num_positions: int
) -> tuple[Array, Array, Array]:
    """(work tile, cell, the preceding tile there or −1), wherever it differs from the cell on its left, from
    the right.

    A cell is the interval between two neighbouring positions. O(tiles · cells), in few operations.

    Args:
        owner: (E,) work tile of each stretch.
        cells: (2, E) its first cell and the one after its last. Stretches of a tile are disjoint.
    """
    depth = torch.zeros(num_tiles, num_positions, dtype=torch.int8, device=owner.device)
    depth[owner, cells[0]] = 1
    depth[owner, cells[1]] = -1
    # of all rows at once, since each ends at 0
    depth = torch.cumsum(depth.view(-1), 0, dtype=torch.int8).view(depth.shape)
    # a row for each position, so that the next line goes along memory
    touched = depth[:, :-1].flip(1).t().contiguous() > 0
    numbers = torch.arange(num_tiles, dtype=torch.int32, device=owner.device)
    latest = torch.cummax(torch.where(touched, numbers, -1), 1).values
    before = torch.full_like(latest, -1)
    before[:, 1:] = torch.where(touched[:, 1:], latest[:, :-1], -1)
    last = torch.ones_like(touched)
    last[:-1] = before[1:] != before[:-1]
    tile, position = torch.nonzero(last.t().contiguous(), as_tuple=True)
    return tile, num_positions - 2 - position, before[position, tile].long()


def changes_by_sets(
    owner: Array, cells: Array, num_tiles: int, num_positions: int
) -> tuple[Array, Array, Array]:
    """The same in O(stretches · log) and a bit of memory for each tile and cell, in three times as many
    operations."""
    touching = _TileSets(owner, cells, num_tiles, num_positions)
    last = num_positions - 1
    # the predecessor of a tile changes only where a stretch begins or ends: its own, or one of the
    # predecessor
    moved = concat([owner, owner])
    position = cells.reshape(-1)
    after = touching.next_tile(concat([cells[0], cells[1] - 1]), moved)
    tile = concat([moved, after])
    position = concat([position, position])
    key = where((tile >= 0) & (position < last), tile * last + (last - 1 - position), last - 1)
    tiles = numbers(num_tiles, owner)
    # sorted by tile, then from the right; the first cell of all
    key, _ = distinct(concat([key, tiles * last + (last - 1)]))
    tile = key // last
    position = last - 1 - key % last
    before = touching.previous_tile(position, tile)
    kept = true_positions(
        (position == 0) | (before != touching.previous_tile(at_least(position - 1, 0), tile))
    )
    return tile[kept], position[kept], before[kept]


class _TileSets:
    """The work tiles that touch each cell, as bits."""

    def __init__(self, owner: Array, cells: Array, num_tiles: int, num_positions: int) -> None:
        num_words = -(-num_tiles // WORD)
        bit = _bit(owner % WORD)
        place = (cells * num_words + owner // WORD).reshape(-1)
        words = sums_of(place, concat([bit, -bit]), num_positions * num_words)
        self._words = cumulative(words.reshape(num_positions, num_words), 0)
        number = numbers(num_words, owner)
        some = self._words != 0
        # last non-zero word up to each position
        self._some_until = largest_so_far(where(some, number, -1), 1)
        # first non-zero word from each position on
        self._some_from = flipped(least_so_far(flipped(where(some, number, num_words), 1), 1), 1)
        self._num_words = num_words

    def previous_tile(self, cell: Array, tile: Array) -> Array:
        """The last preceding tile that touches the same cell; −1 if there is none, or if the tile itself does
        not touch it."""
        own = self._words[cell, tile // WORD]
        word = tile // WORD
        inside = own & (_bit(tile % WORD) - 1)
        earlier = where(word > 0, self._some_until[cell, at_least(word - 1, 0)], -1)
        word = where(inside != 0, word, earlier)
        bits = where(inside != 0, inside, self._words[cell, at_least(word, 0)])
        touches = (own >> tile % WORD) & 1
        return where((touches == 1) & (word >= 0), word * WORD + _highest_bit(bits), -1)

    def next_tile(self, cell: Array, tile: Array) -> Array:
        """The first following tile that touches a cell; −1 if there is none."""
        word = tile // WORD
        inside = self._words[cell, word] & -(_bit(tile % WORD) * 2)
        later = where(
            word + 1 < self._num_words,
            self._some_from[cell, at_most(word + 1, self._num_words - 1)],
            self._num_words,
        )
        word = where(inside != 0, word, later)
        bits = where(inside != 0, inside, self._words[cell, at_most(word, self._num_words - 1)])
        return where(word < self._num_words, word * WORD + _highest_bit(bits & -bits), -1)


def _bit(number: Array) -> Array:
    return (zeros(number.shape, number) + 1) << number


def _highest_bit(bits: Array) -> Array:
    """The number of the highest bit of numbers of at most `WORD` bits, which float64 holds exactly; undefined
    for 0."""
    if isinstance(bits, np.ndarray):
        return np.frexp(bits.astype(np.float64))[1].astype(np.int64) - 1
    return torch.frexp(bits.double()).exponent.long() - 1


def _touched(work_tiles: Array, ranges: Array, tile_n: int) -> tuple[Array, Array, Array]:
    """(work tile, first column, end column) of each stretch of columns to which a work tile adds; sorted and
    not adjacent."""
    count = work_tiles[:, PARTIAL_END] - work_tiles[:, FULL_START]
    owner, rank = expand(count, int(count.sum()))
    if len(owner) == 0:
        return owner, owner, owner
    entry = work_tiles[owner, FULL_START] + rank
    column, number = ranges[entry].T
    start, order = sort(owner * FAR + column)
    num_blocks = where(entry < work_tiles[owner, PARTIAL_START], number, 1)
    end = largest_so_far(start + (num_blocks * tile_n)[order])
    first, last = segments(start[1:] > end[:-1])
    return start[first] // FAR, start[first] % FAR, end[last] % FAR
