"""The order in which work tiles of keys add to dQ: the work tile for which each one must wait.

Floating-point sums depend on the order of their terms. With a fixed order, the fused backward kernel gives
the same bits in every run.
"""

from dataclasses import replace

import torch
from torch import Tensor

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
    ranges = schedule.block_ranges.long()
    number = torch.arange(schedule.work_tiles.shape[1] + 1, device=ranges.device)
    for work_tiles in schedule.work_tiles.long():
        tile, entries = _of_group(work_tiles, ranges, schedule.tile_n, order)
        bounds = torch.searchsorted(tile.contiguous(), number) + num_waits
        waits.append(entries)
        wait_ranges.append(torch.stack([bounds[:-1], bounds[1:]], 1))
        num_waits += len(entries)
    return replace(
        schedule, waits=torch.cat(waits).to(torch.int32), wait_ranges=torch.stack(wait_ranges).to(torch.int32)
    )


def may_store_first(schedule: TileSchedule, num_rows: int, num_columns: int) -> bool:
    """True if work tiles cover all rows and columns in whole tiles and blocks, each at a multiple of its
    length.

    Args:
        num_rows, num_columns: of the mask, as the schedule sees it.
    """
    if len(schedule.work_tiles) > 1:
        return False
    (work_tiles,) = schedule.work_tiles.long()
    ranges = schedule.block_ranges.long()
    tile_n = schedule.tile_n
    rows = torch.arange(0, num_rows, schedule.tile_m, device=ranges.device)
    if len(work_tiles) != len(rows):
        return False
    _, start, end = _touched(work_tiles, ranges, tile_n)
    num_blocks = (work_tiles[:, NUM_FULL] + work_tiles[:, PARTIAL_END] - work_tiles[:, PARTIAL_START]).sum()
    changes = torch.zeros(-(-num_columns // tile_n) + 1, dtype=torch.int64, device=ranges.device)
    for edge, change in ((start, 1), (end, -1)):
        changes.scatter_add_(0, (edge // tile_n).clamp(max=len(changes) - 1), torch.full_like(edge, change))
    right = torch.stack(
        [
            (torch.sort(work_tiles[:, ROW_START]).values == rows).all(),
            (ranges[:, 0] % tile_n == 0).all(),
            (end - start).sum() == num_blocks * tile_n,
            (torch.cumsum(changes, 0)[:-1] > 0).all(),
        ]
    )
    return bool(right.all())


def _of_group(work_tiles: Tensor, ranges: Tensor, tile_n: int, order: AddOrder) -> tuple[Tensor, Tensor]:
    """(work tile, (first column, work tile to wait for)) of each stretch of columns, from the right."""
    owner, start, end = _touched(work_tiles, ranges, tile_n)
    if len(owner) == 0:
        return owner, work_tiles.new_zeros(0, 2)
    if order is AddOrder.FROM_FIRST:
        start, end = -end, -start
    positions, cells = torch.unique(torch.stack([start, end]), return_inverse=True)
    # launches dominate the time on a GPU, arithmetic on a CPU
    stretches = changes_by_matrix if owner.is_cuda else changes_by_sets
    tile, offset, before = stretches(owner, cells, len(work_tiles), len(positions))
    return tile, torch.stack([positions[offset], before], 1)


def changes_by_matrix(
    owner: Tensor, cells: Tensor, num_tiles: int, num_positions: int
) -> tuple[Tensor, Tensor, Tensor]:
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
    owner: Tensor, cells: Tensor, num_tiles: int, num_positions: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The same in O(stretches · log) and a bit of memory for each tile and cell, in three times as many
    operations."""
    touching = _TileSets(owner, cells, num_tiles, num_positions)
    last = num_positions - 1
    # the predecessor of a tile changes only where a stretch begins or ends: its own, or one of the
    # predecessor
    moved = owner.repeat(2)
    position = cells.flatten()
    after = touching.next_tile(torch.cat([cells[0], cells[1] - 1]), moved)
    tile = torch.cat([moved, after])
    position = position.repeat(2)
    key = torch.where((tile >= 0) & (position < last), tile * last + (last - 1 - position), last - 1)
    tiles = torch.arange(num_tiles, device=owner.device)
    # sorted by tile, then from the right; the first cell of all
    key = torch.unique(torch.cat([key, tiles * last + (last - 1)]))
    tile = key // last
    position = last - 1 - key % last
    before = touching.previous_tile(position, tile)
    kept = torch.nonzero(
        (position == 0) | (before != touching.previous_tile((position - 1).clamp(min=0), tile))
    ).squeeze(1)
    return tile[kept], position[kept], before[kept]


class _TileSets:
    """The work tiles that touch each cell, as bits."""

    def __init__(self, owner: Tensor, cells: Tensor, num_tiles: int, num_positions: int) -> None:
        num_words = -(-num_tiles // WORD)
        bit = torch.ones_like(owner) << owner % WORD
        words = torch.zeros(num_positions * num_words, dtype=torch.int64, device=owner.device)
        words.scatter_add_(0, (cells * num_words + owner // WORD).flatten(), torch.cat([bit, -bit]))
        self._words = torch.cumsum(words.view(num_positions, num_words), 0)
        number = torch.arange(num_words, device=owner.device)
        some = self._words != 0
        # last non-zero word up to each position
        self._some_until = torch.cummax(torch.where(some, number, -1), 1).values
        # first non-zero word from each position on
        self._some_from = torch.cummin(torch.where(some, number, num_words).flip(1), 1).values.flip(1)
        self._num_words = num_words

    def previous_tile(self, cell: Tensor, tile: Tensor) -> Tensor:
        """The last preceding tile that touches the same cell; −1 if there is none, or if the tile itself does
        not touch it."""
        own = self._words[cell, tile // WORD]
        word = tile // WORD
        inside = own & ((torch.ones_like(tile) << tile % WORD) - 1)
        earlier = torch.where(word > 0, self._some_until[cell, (word - 1).clamp(min=0)], -1)
        word = torch.where(inside != 0, word, earlier)
        bits = torch.where(inside != 0, inside, self._words[cell, word.clamp(min=0)])
        touches = (own >> tile % WORD) & 1
        return torch.where((touches == 1) & (word >= 0), word * WORD + _highest_bit(bits), -1)

    def next_tile(self, cell: Tensor, tile: Tensor) -> Tensor:
        """The first following tile that touches a cell; −1 if there is none."""
        word = tile // WORD
        inside = self._words[cell, word] & -(torch.full_like(tile, 2) << tile % WORD)
        later = torch.where(
            word + 1 < self._num_words,
            self._some_from[cell, (word + 1).clamp(max=self._num_words - 1)],
            self._num_words,
        )
        word = torch.where(inside != 0, word, later)
        bits = torch.where(inside != 0, inside, self._words[cell, word.clamp(max=self._num_words - 1)])
        return torch.where(word < self._num_words, word * WORD + _highest_bit(bits & -bits), -1)


def _highest_bit(bits: Tensor) -> Tensor:
    """The number of the highest bit of numbers of at most `WORD` bits, which float64 holds exactly; undefined
    for 0."""
    return torch.frexp(bits.double()).exponent.long() - 1


def _touched(work_tiles: Tensor, ranges: Tensor, tile_n: int) -> tuple[Tensor, Tensor, Tensor]:
    """(work tile, first column, end column) of each stretch of columns to which a work tile adds; sorted and
    not adjacent."""
    count = work_tiles[:, PARTIAL_END] - work_tiles[:, FULL_START]
    owner, rank = expand(count, int(count.sum()))
    if len(owner) == 0:
        return owner, owner, owner
    entry = work_tiles[owner, FULL_START] + rank
    column, number = ranges[entry].unbind(1)
    start, order = torch.sort(owner * FAR + column)
    num_blocks = torch.where(entry < work_tiles[owner, PARTIAL_START], number, 1)
    end = torch.cummax(start + (num_blocks * tile_n)[order], 0).values
    first, last = segments(start[1:] > end[:-1])
    return start[first] // FAR, start[first] % FAR, end[last] % FAR
