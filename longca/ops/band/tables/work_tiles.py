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
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from longca.ops.band.tables.backward_rule import AddOrder
from longca.ops.band.tables.partial_masks import PartialBlocks
from longca.ops.band.tables.ranges import expand, prefix_sums, true_places
from longca.ops.band.tables.row_tiles import RowTiles
from longca.ops.band.tables.schedule import FULL_START, PARTIAL_END, TileSchedule

SIMILAR = 1.5  # work tiles that wait for each other count as equally long within this ratio
FAR = 1 << 40  # more blocks than any work tile has


@dataclass(frozen=True, eq=False)
class BlockLists:
    """Blocks sorted by list: the K lists of `RowTiles`, or the splits of these."""

    full: Tensor  # (3, F): list, column, number of contiguous full blocks
    # (4, P): list, column and mask of each partial block, and its NARROW; narrow ones are the first of their
    # list
    partial: Tensor
    before: Tensor  # (3, K + 1): entries of full blocks, full blocks, and partial blocks of all lists before
    counts: Tensor  # (3, K): those of each list

    @property
    def length(self) -> Tensor:
        """(K,) blocks of each."""
        return self.counts[1] + self.counts[2]


@dataclass(frozen=True, eq=False)
class WorkTiles:
    """Work tiles, sorted by part (`RowTiles`) and row tile."""

    table: Tensor  # (4, n): part, first row, end of the rows, SLOT
    list_of: Tensor | None  # (n,); None: each work tile has its own
    first_list: Tensor  # (B + 1,) of each part; then how many there are
    splits: Tensor  # (S, 4) of row tiles that were split, see `TileSchedule`
    num_tiles: list[int]  # (B,)
    num_splits: list[int]  # (B,)
    num_slots: list[int]  # (B,)


def schedules_of(row_tiles: RowTiles, full: Tensor, partial: PartialBlocks) -> list[TileSchedule]:
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
    lengths = [
        functional.pad(length[rows], (0, 1)) for rows in _rows_of_specs(row_tiles.num_tiles, num_groups)
    ]
    sums = torch.stack([some.sum() for some in lengths])
    longest = torch.stack([some.max() for some in lengths])
    sums, longest, first_mask, first_range = _read(
        sums, longest, partial.first, _first_range(work_tiles, lists)
    )
    limits = [
        max(spec.min_blocks, int(spec.max_fraction * blocks))
        for spec, blocks in zip(specs, sums, strict=True)
    ]
    if any(blocks > limit for blocks, limit in zip(longest, limits, strict=True)):
        work_tiles, lists = _split(row_tiles, lists, limits)
        (first_range,) = _read(_first_range(work_tiles, lists))

    table = _sorted(row_tiles, work_tiles, lists)
    ranges = _block_ranges(lists)
    schedules = []
    no_waits: dict[str, Any] = {
        "waits": ranges.new_zeros(0, 2),
        "wait_ranges": ranges.new_zeros(num_groups, 0, 2),
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
                work_tiles=_by_group(mine, work_tiles.num_tiles[parts]),
                block_ranges=ranges[start:end].clone(),
                partial_masks=_masks_of_rows(
                    partial.masks[first_mask[number] : first_mask[number + 1]], spec.tile_m
                ),
                splits=_by_group(work_tiles.splits[rows_of_splits[number]], work_tiles.num_splits[parts]),
                num_slots=max(work_tiles.num_slots[parts]),
                **no_waits,
            )
        )
    return schedules


def _narrow_first(row_tiles: RowTiles, partial: PartialBlocks) -> Tensor:
    """(4, P), as in `BlockLists`."""
    if not any(spec.narrow_n for spec in row_tiles.specs):
        return functional.pad(partial.blocks, (0, 0, 0, 1))
    list_, _, mask = partial.blocks
    number = row_tiles.parts[2][row_tiles.part_of[list_]]
    # columns up to the last one that a row sees
    seen = torch.amax(partial.masks >> 16, 1)[mask + partial.first[number]]
    is_narrow = torch.zeros_like(mask, dtype=torch.bool)
    for index, spec in enumerate(row_tiles.specs):
        if spec.narrow_n:
            is_narrow |= (number == index) & (seen <= spec.narrow_n)
    order = torch.argsort(list_ * 2 + ~is_narrow, stable=True)
    return torch.cat([partial.blocks, torch.where(is_narrow, mask + 1, 0)[None]]).index_select(1, order)


def _block_lists(full: Tensor, partial: Tensor, num_lists: int) -> BlockLists:
    ids = torch.arange(num_lists + 1, device=full.device)
    ranges = torch.searchsorted(full[0], ids)
    before = torch.stack([ranges, prefix_sums(full[2])[ranges], torch.searchsorted(partial[0], ids)])
    return BlockLists(full, partial, before, before.diff())


def _unsplit(row_tiles: RowTiles) -> WorkTiles:
    """Each row tile as one work tile."""
    none = [0] * len(row_tiles.num_tiles)
    table = functional.pad(row_tiles.tiles, (0, 0, 0, 1), value=-1)
    return WorkTiles(
        table,
        row_tiles.list_of,
        row_tiles.parts[1],
        row_tiles.tiles.new_zeros(0, 4),
        row_tiles.num_tiles,
        none,
        none,
    )


def _split(row_tiles: RowTiles, lists: BlockLists, limits: list[int]) -> tuple[WorkTiles, BlockLists]:
    """Splits row tiles into work tiles of at most so many blocks, for each `TileSpec`: equally many, or one
    less."""
    length = lists.length
    num = torch.clamp(-(-length // length.new_tensor(limits)[row_tiles.parts[2][row_tiles.part_of]]), min=1)
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
    is_split = has_splits.long()
    # in all row tiles before: work tiles, split ones, their slots
    sums = prefix_sums(torch.stack([num_of, is_split, num_of * is_split]))
    starts = sums.index_select(1, row_tiles.parts[0])
    *numbers, num_lists, num_ranges = torch.cat(
        [starts.flatten(), torch.stack([num.sum(), num_cuts.sum()])]
    ).tolist()
    num_tiles, num_splits, num_slots = np.diff(np.reshape(numbers, (3, -1))).tolist()

    entry, rank = expand(num_cuts, num_ranges)
    fields = torch.stack([list_, column, count, start, size_of, split])
    list_, column, count, start, size_of, split = fields.index_select(1, entry).unbind(0)
    split = split + rank
    first = torch.maximum(start, split * size_of)
    column = column + (first - start) * row_tiles.parts[4][row_tiles.part_of[list_]]
    full = torch.stack(
        [before[list_] + split, column, torch.minimum(start + count, (split + 1) * size_of) - first]
    )
    list_, *fields = lists.partial
    # after all full ones
    start = torch.arange(len(list_), device=list_.device) + (lists.counts[1] - lists.before[2, :-1])[list_]
    partial = torch.stack([before[list_] + start // size[list_], *fields])

    part, row_start, row_end = row_tiles.tiles
    slot = sums[2, :-1] - starts[2][part]
    splits = torch.stack([row_start, row_end, slot, num_of], 1)[true_places(has_splits, sum(num_splits))]
    owner, rank = expand(num_of, sum(num_tiles))
    slot = torch.where(has_splits, slot, -1)
    *table, is_split, first_of = torch.stack(
        [part, row_start, row_end, slot, is_split, first_of]
    ).index_select(1, owner)
    table[3] += rank * is_split
    work_tiles = WorkTiles(
        torch.stack(table),
        None if row_tiles.list_of is None else first_of + rank,
        before[row_tiles.parts[1]],
        splits,
        num_tiles,
        num_splits,
        num_slots,
    )
    return work_tiles, _block_lists(full, partial, num_lists)


def _read(*tables: Tensor) -> list[list[int]]:
    """Reads all tables at once, since each synchronisation with the device is slow."""
    numbers = iter(torch.cat(tables).tolist())
    return [[next(numbers) for _ in range(len(table))] for table in tables]


def _first_range(work_tiles: WorkTiles, lists: BlockLists) -> Tensor:
    """(B + 1,) first entry of `block_ranges` of each part; then how many there are."""
    return (lists.before[0] + lists.before[2])[work_tiles.first_list]


def _rows_of_specs(sizes: Sequence[int], num_groups: int) -> list[slice]:
    """Rows of each `TileSpec`, of tables with so many rows of each part."""
    ends = [0, *accumulate(sizes)][::num_groups]
    return [slice(*ends[number : number + 2]) for number in range(len(ends) - 1)]


def _sorted(row_tiles: RowTiles, work_tiles: WorkTiles, lists: BlockLists) -> Tensor:
    """(n, 8), as in `TileSchedule`, but entries of `block_ranges` count through all parts."""
    ranges = lists.before[0] + lists.before[2]
    # of the first partial block, if there is one
    narrow = functional.pad(lists.partial[3], (0, 1))[lists.before[2, :-1]]
    narrow = torch.where((lists.counts[2] > 0) & (lists.length > 1), narrow, 0)
    of_list = torch.stack(
        [ranges[:-1], ranges[:-1] + lists.counts[0], ranges[1:], lists.counts[1], narrow, lists.length]
    )
    if work_tiles.list_of is not None:
        of_list = of_list.index_select(1, work_tiles.list_of)
    full_start, partial_start, partial_end, num_full, narrow, length = of_list
    part, row_start, row_end, slot = work_tiles.table
    for spec, rows in zip(
        row_tiles.specs, _rows_of_specs(work_tiles.num_tiles, row_tiles.num_groups), strict=True
    ):
        # those of about the same length by their rows: the one that comes first then stays ahead
        if spec.in_order is AddOrder.FROM_LAST:
            length[rows] = (torch.log(length[rows].clamp(min=1)) / math.log(SIMILAR)).long()
        if spec.in_order is AddOrder.FROM_FIRST:
            length[rows] = row_start[rows]
    order = torch.argsort(part * FAR - length, stable=True)
    return torch.stack(
        [row_start, row_end, full_start, partial_start, partial_end, num_full, slot, narrow], 1
    )[order]


def _block_ranges(lists: BlockLists) -> Tensor:
    """(R, 2) int32, as in `TileSchedule`: list by list, full blocks first."""
    ranges = lists.full.new_empty(lists.full.shape[1] + lists.partial.shape[1], 2, dtype=torch.int32)
    for blocks, others in ((lists.full, lists.before[2]), (lists.partial, lists.before[0, 1:])):
        target = torch.arange(blocks.shape[1], device=blocks.device) + others[blocks[0]]
        ranges[target] = blocks[1:3].t().to(torch.int32)
    return ranges


def _by_group(rows: Tensor, sizes: Sequence[int]) -> Tensor:
    """Rows sorted by group as int32 (groups, most of a group, columns), padded with zeros; in memory of its
    own, so that it is aligned."""
    rows = rows.to(torch.int32)
    if min(sizes) == max(sizes):
        return rows.view(len(sizes), sizes[0], rows.shape[1])
    return pad_sequence(list(rows.split(sizes)), batch_first=True)


def _masks_of_rows(masks: Tensor, num_rows: int) -> Tensor:
    """Masks of so many rows; where all rows see the same, from those of one row."""
    return (masks[:, :num_rows] if masks.shape[1] > 1 else masks.expand(-1, num_rows)).clone(
        memory_format=torch.contiguous_format
    )
