"""The order in which work tiles of keys add to dQ: the work tile for which each one must wait.

Floating-point sums depend on the order of their terms. With a fixed order, the fused backward kernel gives
the same bits in every run.
"""

import math
from dataclasses import replace

import numpy as np
import torch

from longca.masks import Mask
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
from longca.ops.band.tables.backward_rule import AddOrder, is_staircase, is_window
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
# A row tile for each program of an H100 or H200, and all of about the same length: heads then take turns, and
# share the level-2 cache.
MANY_TILES = 132
NEARLY_ALL = 0.9
NARROW = 0.25  # share of the keys that a query sees; wider windows were not measured
ITEMS_OF_PROGRAM = 4  # at least, or some programs would have twice the work of others
HEADS_AT_ONCE = 4  # query heads, of all KV heads together


def heads_per_item_of(mask: Mask, order: AddOrder, num_q_heads: int, tile_m: int) -> int:
    """Query heads of one KV head that a work tile processes before it adds dK and dV: four under a narrow
    window, where tiles are short, or two if there are few items; otherwise one."""
    if order is not AddOrder.FROM_FIRST or not _is_narrow_window(mask):
        return 1
    num_items = num_q_heads * (mask.seqlen_k // tile_m)
    return next(
        (heads for heads in (HEADS_AT_ONCE, 2) if num_items >= heads * ITEMS_OF_PROGRAM * MANY_TILES), 1
    )


def heads_at_once(
    mask: Mask, order: AddOrder, num_kv_heads: int, head_rounds: int, heads_per_item: int, tile_m: int
) -> tuple[int, int]:
    """(KV heads whose work tiles start together, items of each such work tile that start together).

    With several query heads, work tiles of one head wait less for each other; with few, Q, dO and dQ stay in
    the level-2 cache, and with few KV heads the sums of dK and dV as well. Under a staircase work tiles
    hardly wait.

    Args:
        head_rounds: items of a work tile and KV head, of `heads_per_item` query heads each.
    """
    first = order is AddOrder.FROM_FIRST
    if order is AddOrder.ANY or (first and is_staircase(mask) and not _is_narrow_window(mask)):
        return 1, 1
    if mask.density >= NEARLY_ALL:
        return math.gcd(
            num_kv_heads, _kv_heads_under_even_tiles(mask.seqlen_q // tile_m, mask.seqlen_k // tile_m, first)
        ), 1
    rounds = math.gcd(2, head_rounds) if first and heads_per_item == 1 else 1
    return math.gcd(num_kv_heads, max(HEADS_AT_ONCE // (heads_per_item * rounds), 1)), rounds


def _kv_heads_under_even_tiles(num_row_tiles: int, num_tiles: int, first: bool) -> int:
    """KV heads that start together if all work tiles have the same length. The tiles follow each other
    through the rows of a head, so its rows limit the number of active tiles."""
    if num_tiles >= MANY_TILES:
        return next(
            (heads for heads in (1, 2) if heads * num_row_tiles >= NEARLY_ALL * MANY_TILES), HEADS_AT_ONCE
        )
    return (
        2
        if first and num_row_tiles >= num_tiles and 2 * num_tiles >= NEARLY_ALL * MANY_TILES
        else HEADS_AT_ONCE
    )


def _is_narrow_window(mask: Mask) -> bool:
    return is_window(mask) and mask.density <= NARROW


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
