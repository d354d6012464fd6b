"""Lines that would take much longer than others cut into pieces."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from longca.ops.band.tables.layout import Layout
from longca.ops.band.tables.ranges import chosen, spread, upto


@dataclass(frozen=True, eq=False)
class Lists:
    """Steps of lists, sorted by list: the K lists of `Layout`, or what they were cut into."""

    full: Tensor  # (3, F): list, column, number of each run of full steps
    partial: Tensor  # (3, P): list, column, shape of each partial step
    before: Tensor  # (3, K + 1): runs of full steps, full steps, and partial steps of all lists before
    counts: Tensor  # (3, K): those of each list

    @property
    def length(self) -> Tensor:
        """(K,) steps of each."""
        return self.counts[1] + self.counts[2]


@dataclass(frozen=True, eq=False)
class Pieces:
    """Pieces of lines, sorted by part (`Layout`) and line."""

    table: Tensor  # (5, n): part, first row, row behind the last, SLOT, LINE
    list_of: Tensor | None  # (n,); None: each piece has its own
    first_list: Tensor  # (B + 1,) of each part; then how many there are
    splits: Tensor  # (S, 4) of lines that were cut, see `Lines`
    num_pieces: list[int]  # (B,)
    num_splits: list[int]  # (B,)
    num_slots: list[int]  # (B,)


def lists_of(full: Tensor, partial: Tensor, num_lists: int) -> Lists:
    """Of runs of full steps and partial steps."""
    ids = torch.arange(num_lists + 1, device=full.device)
    runs = torch.searchsorted(full[0], ids)
    before = torch.stack([runs, upto(full[2])[runs], torch.searchsorted(partial[0], ids)])
    return Lists(full, partial, before, before.diff())


def whole(layout: Layout) -> Pieces:
    """Each line a piece."""
    none = [0] * len(layout.num_lines)
    table = functional.pad(layout.lines, (0, 0, 0, 2), value=-1)
    return Pieces(table, layout.list_of, layout.parts[1], layout.lines.new_zeros(0, 4), layout.num_lines, none, none)


def cut(layout: Layout, lists: Lists, most: list[int]) -> tuple[Pieces, Lists]:
    """Lines cut into pieces of at most so many steps, for each `Wanted`. The pieces of a line have equally many, or one less."""
    length = lists.length
    num = torch.clamp(-(-length // length.new_tensor(most)[layout.parts[2][layout.part_of]]), min=1)
    before, size = upto(num), -(-length // num)
    line, column, count = lists.full
    begin, of = upto(count)[:-1] - lists.before[1][line], size[line]
    piece = begin // of
    num_cuts = (begin + count - 1) // of - piece + 1

    num_of, first_of = (num, before[:-1]) if layout.list_of is None else (num[layout.list_of], before[layout.list_of])
    split = num_of > 1
    is_split = split.long()
    sums = upto(torch.stack([num_of, is_split, num_of * is_split]))  # pieces, lines that are cut, and their slots in all lines before
    starts = sums.index_select(1, layout.parts[0])
    *numbers, num_lists, num_runs = torch.cat([starts.flatten(), torch.stack([num.sum(), num_cuts.sum()])]).tolist()
    num_pieces, num_splits, num_slots = np.diff(np.reshape(numbers, (3, -1))).tolist()

    run, rank = spread(num_cuts, num_runs)
    line, column, count, begin, of, piece = torch.stack([line, column, count, begin, of, piece]).index_select(1, run).unbind(0)
    piece = piece + rank
    first = torch.maximum(begin, piece * of)
    column = column + (first - begin) * layout.parts[4][layout.part_of[line]]
    full = torch.stack([before[line] + piece, column, torch.minimum(begin + count, (piece + 1) * of) - first])
    line, column, shape = lists.partial
    begin = torch.arange(len(line), device=line.device) + (lists.counts[1] - lists.before[2, :-1])[line]  # after all full ones
    partial = torch.stack([before[line] + begin // size[line], column, shape])

    part, row0, row1 = layout.lines
    place, slot = sums[1:, :-1] - starts[1:].index_select(1, part)
    splits = torch.stack([row0, row1, slot, num_of], 1)[chosen(split, sum(num_splits))]
    owner, rank = spread(num_of, sum(num_pieces))
    slot, place = torch.where(split, slot, -1), torch.where(split, place, -1)
    *table, is_split, first_of = torch.stack([part, row0, row1, slot, place, is_split, first_of]).index_select(1, owner)
    table[3] += rank * is_split
    pieces = Pieces(torch.stack(table), None if layout.list_of is None else first_of + rank, before[layout.parts[1]], splits, num_pieces,
                    num_splits, num_slots)
    return pieces, lists_of(full, partial, num_lists)
