"""Steps of lists made into `Lines`: pieces sorted, most often the longest first, and tables as the kernels read them."""

import math
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from longca.ops.band.tables.layout import Layout
from longca.ops.band.tables.partial_masks import Shapes
from longca.ops.band.tables.schedule import FIRST, LAST, Lines
from longca.ops.band.tables.split import Lists, Pieces, cut, lists_of, whole

ALIKE = 1.5  # pieces that wait for each other count as equally long if none is so much longer
FAR = 1 << 40  # more steps than any piece has


def lines_of(layout: Layout, full: Tensor, shapes: Shapes) -> list[Lines]:
    """For each `Wanted`, without turns. Shapes: full (3, F), list, column and number of each run of full steps."""
    wanted, num_groups = layout.wanted, layout.num_groups
    pieces, lists = whole(layout), lists_of(full, shapes.steps, len(layout.part_of))
    length = lists.length if layout.list_of is None else lists.length[layout.list_of]
    lengths = [functional.pad(length[rows], (0, 1)) for rows in _ranges(layout.num_lines, num_groups)]  # a line at least
    sums, longest = torch.stack([lines.sum() for lines in lengths]), torch.stack([lines.max() for lines in lengths])
    sums, longest, first_shape, first_run = _read(sums, longest, shapes.first, _first_run(pieces, lists))
    most = [max(lines.least, int(lines.longest * steps)) for lines, steps in zip(wanted, sums, strict=True)]
    if any(steps > limit for steps, limit in zip(longest, most, strict=True)):
        pieces, lists = cut(layout, lists, most)
        first_run, = _read(_first_run(pieces, lists))

    table, runs, found = _sorted(layout, pieces, lists), _runs(lists), []
    no_turns = {"waits": runs.new_zeros(0, 2), "waits_of": runs.new_zeros(num_groups, 0, 2)}
    rows, rows_of_splits = _ranges(pieces.num_pieces, num_groups), _ranges(pieces.num_splits, num_groups)
    for number, lines in enumerate(wanted):
        parts = slice(number * num_groups, (number + 1) * num_groups)
        mine, first, behind = table[rows[number]], first_run[parts.start], first_run[parts.stop]
        mine[:, FIRST:LAST + 1] -= first
        found.append(Lines(
            tile=lines.tile, step=lines.step, pieces=_by_group(mine, pieces.num_pieces[parts]), runs=runs[first:behind].clone(),
            shapes=_of_tile(shapes.table[first_shape[number]:first_shape[number + 1]], lines.tile),
            splits=_by_group(pieces.splits[rows_of_splits[number]], pieces.num_splits[parts]),
            num_slots=max(pieces.num_slots[parts]), **no_turns))
    return found


def _read(*tables: Tensor) -> list[list[int]]:
    """All at once, since each time that the host waits for the device takes long."""
    numbers = iter(torch.cat(tables).tolist())
    return [[next(numbers) for _ in range(len(table))] for table in tables]


def _first_run(pieces: Pieces, lists: Lists) -> Tensor:
    """(B + 1,) of each part; then how many there are."""
    return (lists.before[0] + lists.before[2])[pieces.first_list]


def _ranges(sizes: Sequence[int], num_groups: int) -> list[slice]:
    """Rows of each `Wanted`, of tables with so many rows of each part."""
    ends = [0, *accumulate(sizes)][::num_groups]
    return [slice(*ends[number:number + 2]) for number in range(len(ends) - 1)]


def _sorted(layout: Layout, pieces: Pieces, lists: Lists) -> Tensor:
    """(n, 8), as in `Lines`, but for runs, which count through all parts."""
    runs = lists.before[0] + lists.before[2]
    of_list = torch.stack([runs[:-1], runs[:-1] + lists.counts[0], runs[1:], lists.counts[1], lists.length])
    if pieces.list_of is not None:
        of_list = of_list.index_select(1, pieces.list_of)
    first, middle, last, num_full, length = of_list
    for lines, rows in zip(layout.wanted, _ranges(pieces.num_pieces, layout.num_groups), strict=True):
        if lines.in_order:
            length[rows] = (torch.log(length[rows].clamp(min=1)) / math.log(ALIKE)).long()
    part, row0, row1, slot, line = pieces.table
    order = torch.argsort(part * FAR - length, stable=True)
    return torch.stack([row0, row1, first, middle, last, num_full, slot, line], 1)[order]


def _runs(lists: Lists) -> Tensor:
    """(R, 2) int32, as in `Lines`: list by list, full ones first."""
    runs = lists.full.new_empty(lists.full.shape[1] + lists.partial.shape[1], 2, dtype=torch.int32)
    for steps, others in ((lists.full, lists.before[2]), (lists.partial, lists.before[0, 1:])):
        place = torch.arange(steps.shape[1], device=steps.device) + others[steps[0]]
        runs[place] = steps[1:].t().to(torch.int32)
    return runs


def _by_group(rows: Tensor, sizes: Sequence[int]) -> Tensor:
    """Rows sorted by group as int32 (groups, most of a group, columns), padded with zeros; in memory of its own, so that it is aligned."""
    rows = rows.to(torch.int32)
    if min(sizes) == max(sizes):
        return rows.view(len(sizes), sizes[0], rows.shape[1])
    return pad_sequence(list(rows.split(sizes)), batch_first=True)


def _of_tile(shapes: Tensor, tile: int) -> Tensor:
    """Shapes of as many rows; where all rows see the same, from those of one row."""
    return (shapes[:, :tile] if shapes.shape[1] > 1 else shapes.expand(-1, tile)).clone(memory_format=torch.contiguous_format)
