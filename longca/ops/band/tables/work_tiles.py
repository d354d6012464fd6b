"""Work tiles: row tiles, split where they would take much longer than others, sorted, and written as a
`TileSchedule`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longca.ops.band.tables.arrays import (
    Array,
    as_tensor,
    at_least,
    columns,
    concat,
    long,
    maximum,
    minimum,
    moved,
    numbers,
    padded_groups,
    prefix_sums,
    read,
    short,
    stable_order,
    stack,
    starts_of,
    where,
    zeros,
)
from longca.ops.band.tables.backward_rule import AddOrder
from longca.ops.band.tables.partial_masks import PartialBlocks
from longca.ops.band.tables.ranges import expand, true_places
from longca.ops.band.tables.row_tiles import RowTiles
from longca.ops.band.tables.schedule import FULL_START, PARTIAL_END, TileSchedule

SIMILAR = 1.5  # work tiles that wait for each other count as equally long within this ratio
FAR = 1 << 40  # more blocks than any work tile has


@dataclass(frozen=True, eq=False)
class BlockLists:
    """Blocks sorted by list: the K lists of `RowTiles`, or the splits of these."""

    full: Array  # (3, F): list, column, number of contiguous full blocks
    # (4, P): list, column and mask of each partial block, and its NARROW; narrow ones are the first of their
    # list
    partial: Array
    before: Array  # (3, K + 1): entries of full blocks, full blocks, and partial blocks of all lists before
    counts: Array  # (3, K): those of each list

    @property
    def length(self) -> Array:
        """(K,) blocks of each."""
        return self.counts[1] + self.counts[2]


@dataclass(frozen=True, eq=False)
class WorkTiles:
    """Work tiles, sorted by part (`RowTiles`) and row tile."""

    table: Array  # (4, n): part, first row, end of the rows, SLOT
    list_of: Array | None  # (n,); None: each work tile has its own
    first_list: Array  # (B + 1,) of each part; then how many there are
    splits: Array  # (S, 4) of row tiles that were split, see `TileSchedule`
    num_tiles: list[int]  # (B,)
    num_splits: list[int]  # (B,)
    num_slots: list[int]  # (B,)


def schedules_of(row_tiles: RowTiles, full: Array, partial: PartialBlocks) -> list[TileSchedule]:
    """The schedule of each `TileSpec`, without waits.

    Args:
        full: (3, F), list, column and number of contiguous full blocks.
    """
    specs = row_tiles.specs
    num_groups = row_tiles.num_groups
    work_tiles = _unsplit(row_tiles)
    lists = _block_lists(full, _narrow_first(row_tiles, partial), len(row_tiles.part_of))
    length = lists.length if row_tiles.list_of is None else lists.length[row_tiles.list_of]
    # a row tile at least
    nothing = zeros((1,), length)
    lengths = [concat([length[rows], nothing]) for rows in _rows_of_specs(row_tiles.num_tiles, num_groups)]
    sums = stack([some.sum() for some in lengths])
    longest = stack([some.max() for some in lengths])
    sums, longest, first_mask, first_range = read(
        sums, longest, partial.first, _first_range(work_tiles, lists)
    )
    limits = [
        max(spec.min_blocks, int(spec.max_fraction * blocks))
        for spec, blocks in zip(specs, sums, strict=True)
    ]
    if any(blocks > limit for blocks, limit in zip(longest, limits, strict=True)):
        work_tiles, lists = _split(row_tiles, lists, limits)
        (first_range,) = read(_first_range(work_tiles, lists))

    table = _sorted(row_tiles, work_tiles, lists)
    ranges = _block_ranges(lists)
    schedules = []
    no_waits: dict[str, Any] = {
        "waits": as_tensor(zeros((0, 2), ranges, short=True)),
        "wait_ranges": as_tensor(zeros((num_groups, 0, 2), ranges, short=True)),
    }
    rows = _rows_of_specs(work_tiles.num_tiles, num_groups)
    rows_of_splits = _rows_of_specs(work_tiles.num_splits, num_groups)
    for number, spec in enumerate(specs):
        parts = slice(number * num_groups, (number + 1) * num_groups)
        mine = table[rows[number]]
        start = first_range[parts.start]
        end = first_range[parts.stop]
        mine[:, FULL_START : PARTIAL_END + 1] -= start
        schedules.append(
            TileSchedule(
                tile_m=spec.tile_m,
                tile_n=spec.tile_n,
                work_tiles=padded_groups(mine, work_tiles.num_tiles[parts]),
                block_ranges=_own(ranges[start:end]),
                partial_masks=_masks_of_rows(
                    partial.masks[first_mask[number] : first_mask[number + 1]], spec.tile_m
                ),
                splits=padded_groups(work_tiles.splits[rows_of_splits[number]], work_tiles.num_splits[parts]),
                num_slots=max(work_tiles.num_slots[parts]),
                **no_waits,
            )
        )
    return schedules


def _narrow_first(row_tiles: RowTiles, partial: PartialBlocks) -> Array:
    """(4, P), as in `BlockLists`."""
    list_, _, mask = partial.blocks
    if not any(spec.narrow_n for spec in row_tiles.specs):
        return concat([partial.blocks, zeros((1, len(mask)), mask)])
    number = row_tiles.parts[2][row_tiles.part_of[list_]]
    # columns up to the last one that a row sees
    most = partial.masks >> 16
    seen = (most.max(1) if isinstance(most, np.ndarray) else most.amax(1))[mask + partial.first[number]]
    # of no spec: nothing is narrow
    narrow_n = moved(np.array([spec.narrow_n for spec in row_tiles.specs]), _device_of(mask))
    is_narrow = seen <= where(narrow_n > 0, narrow_n, -1)[number]
    order = stable_order(list_ * 2 + ~is_narrow)
    return columns(concat([partial.blocks, where(is_narrow, mask + 1, 0)[None]]), order)


def _block_lists(full: Array, partial: Array, num_lists: int) -> BlockLists:
    ranges = starts_of(full[0], num_lists)
    before = stack([ranges, prefix_sums(full[2])[ranges], starts_of(partial[0], num_lists)])
    return BlockLists(full, partial, before, before[:, 1:] - before[:, :-1])


def _unsplit(row_tiles: RowTiles) -> WorkTiles:
    """Each row tile as one work tile."""
    none = [0] * len(row_tiles.num_tiles)
    no_slot = zeros((1, row_tiles.tiles.shape[1]), row_tiles.tiles) - 1
    return WorkTiles(
        concat([row_tiles.tiles, no_slot]),
        row_tiles.list_of,
        row_tiles.parts[1],
        zeros((0, 4), row_tiles.tiles),
        row_tiles.num_tiles,
        none,
        none,
    )


def _split(row_tiles: RowTiles, lists: BlockLists, limits: list[int]) -> tuple[WorkTiles, BlockLists]:
    """Splits row tiles into work tiles of at most so many blocks, for each `TileSpec`: equally many, or one
    less."""
    length = lists.length
    limit = moved(np.array(limits), _device_of(length))
    num = at_least(-(-length // limit[row_tiles.parts[2][row_tiles.part_of]]), 1)
    before = prefix_sums(num)
    size = -(-length // num)
    list_, column, count = lists.full
    start = prefix_sums(count)[:-1] - lists.before[1][list_]
    size_of = size[list_]
    split = start // size_of
    num_cuts = (start + count - 1) // size_of - split + 1

    num_of, first_of = (
        (num, before[:-1])
        if row_tiles.list_of is None
        else (num[row_tiles.list_of], before[row_tiles.list_of])
    )
    has_splits = num_of > 1
    is_split = long(has_splits)
    # in all row tiles before: work tiles, split ones, their slots
    sums = prefix_sums(stack([num_of, is_split, num_of * is_split]))
    starts = columns(sums, row_tiles.parts[0])
    [(*totals, num_lists, num_ranges)] = read(
        concat([starts.reshape(-1), stack([num.sum(), num_cuts.sum()])])
    )
    num_tiles, num_splits, num_slots = np.diff(np.reshape(totals, (3, -1))).tolist()

    entry, rank = expand(num_cuts, num_ranges)
    list_, column, count, start, size_of, split = columns(
        stack([list_, column, count, start, size_of, split]), entry
    )
    split = split + rank
    first = maximum(start, split * size_of)
    column = column + (first - start) * row_tiles.parts[4][row_tiles.part_of[list_]]
    full = stack([before[list_] + split, column, minimum(start + count, (split + 1) * size_of) - first])
    list_, *fields = lists.partial
    # after all full ones
    start = numbers(len(list_), list_) + (lists.counts[1] - lists.before[2, :-1])[list_]
    partial = stack([before[list_] + start // size[list_], *fields])

    part, row_start, row_end = row_tiles.tiles
    slot = sums[2, :-1] - starts[2][part]
    splits = stack([row_start, row_end, slot, num_of], 1)[true_places(has_splits, sum(num_splits))]
    owner, rank = expand(num_of, sum(num_tiles))
    slot = where(has_splits, slot, -1)
    *table, is_split, first_of = columns(stack([part, row_start, row_end, slot, is_split, first_of]), owner)
    table[3] += rank * is_split
    work_tiles = WorkTiles(
        stack(table),
        None if row_tiles.list_of is None else first_of + rank,
        before[row_tiles.parts[1]],
        splits,
        num_tiles,
        num_splits,
        num_slots,
    )
    return work_tiles, _block_lists(full, partial, num_lists)


def _first_range(work_tiles: WorkTiles, lists: BlockLists) -> Array:
    """(B + 1,) first entry of `block_ranges` of each part; then how many there are."""
    return (lists.before[0] + lists.before[2])[work_tiles.first_list]


def _rows_of_specs(sizes: Sequence[int], num_groups: int) -> list[slice]:
    """Rows of each `TileSpec`, of tables with so many rows of each part."""
    ends = [0, *accumulate(sizes)][::num_groups]
    return [slice(*ends[number : number + 2]) for number in range(len(ends) - 1)]


def _sorted(row_tiles: RowTiles, work_tiles: WorkTiles, lists: BlockLists) -> Array:
    """(n, 8), as in `TileSchedule`, but entries of `block_ranges` count through all parts."""
    ranges = lists.before[0] + lists.before[2]
    # of the first partial block, if there is one
    narrow = concat([lists.partial[3], zeros((1,), ranges)])[lists.before[2, :-1]]
    narrow = where((lists.counts[2] > 0) & (lists.length > 1), narrow, 0)
    of_list = stack(
        [ranges[:-1], ranges[:-1] + lists.counts[0], ranges[1:], lists.counts[1], narrow, lists.length]
    )
    if work_tiles.list_of is not None:
        of_list = columns(of_list, work_tiles.list_of)
    full_start, partial_start, partial_end, num_full, narrow, length = of_list
    part, row_start, row_end, slot = work_tiles.table
    for spec, rows in zip(
        row_tiles.specs, _rows_of_specs(work_tiles.num_tiles, row_tiles.num_groups), strict=True
    ):
        # those of about the same length by their rows: the one that comes first then stays ahead
        if spec.in_order is AddOrder.FROM_LAST:
            # in float32, as torch has it on any device
            some = as_tensor(at_least(length[rows], 1))
            level = (torch.log(some) / math.log(SIMILAR)).long()
            length[rows] = level.numpy() if isinstance(length, np.ndarray) else level
        if spec.in_order is AddOrder.FROM_FIRST:
            length[rows] = row_start[rows]
    order = stable_order(part * FAR - length)
    return stack([row_start, row_end, full_start, partial_start, partial_end, num_full, slot, narrow], 1)[
        order
    ]


def _block_ranges(lists: BlockLists) -> Array:
    """(R, 2) int32, as in `TileSchedule`: list by list, full blocks first."""
    ranges = zeros((lists.full.shape[1] + lists.partial.shape[1], 2), lists.full, short=True)
    for blocks, others in ((lists.full, lists.before[2]), (lists.partial, lists.before[0, 1:])):
        target = numbers(blocks.shape[1], blocks) + others[blocks[0]]
        ranges[target] = short(blocks[1:3].T)
    return ranges


def _own(rows: Array) -> Tensor:
    """A copy in memory of its own, so that it is aligned."""
    return torch.from_numpy(rows.copy()) if isinstance(rows, np.ndarray) else rows.clone()


def _masks_of_rows(masks: Array, num_rows: int) -> Tensor:
    """Masks of so many rows; where all rows see the same, from those of one row."""
    if isinstance(masks, np.ndarray):
        return torch.from_numpy(
            masks[:, :num_rows].copy() if masks.shape[1] > 1 else np.repeat(masks, num_rows, 1)
        )
    return (masks[:, :num_rows] if masks.shape[1] > 1 else masks.expand(-1, num_rows)).clone(
        memory_format=torch.contiguous_format
    )


def _device_of(x: Array) -> torch.device | None:
    return None if isinstance(x, np.ndarray) else x.device
