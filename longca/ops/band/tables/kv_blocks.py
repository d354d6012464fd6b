"""Spans of lines cut into steps: full ones, and partial ones, which are yet to be given their shapes."""

import torch
from torch import Tensor

from longca.ops.band.tables.ranges import chosen, spread
from longca.ops.band.tables.row_tiles import Spans


def cut_spans(spans: Spans) -> tuple[Tensor, Tensor]:
    """(full, partial): (3, F) line, column and number of each run of full steps; (3, P) line, place and its end of each partial step.

    Greedily from the left of each touched span: as few steps as can be, and full ones where they fit. Sorted by line and column.
    """
    line, begin, end = spans.touched.unbind(0)
    step = spans.layout.parts[4][spans.layout.part_of[line]]
    ranges = _full_ranges(spans)
    place, found = begin, []
    for first, behind in zip(ranges[0] + (step - 1), ranges[1], strict=True):
        num_partial = torch.clamp((first - place) // step, min=0)
        start = torch.addcmul(place, num_partial, step)
        num_full = torch.clamp((behind - start) // step, min=0)
        found += [place, num_partial, start, num_full]
        place = torch.addcmul(start, num_full, step)
    rounds = len(found) // 4
    place, num_partial, start, num_full = torch.stack(found).view(rounds, 4, -1).permute(1, 2, 0).reshape(4, -1).unbind(0)
    some = num_full > 0
    total_full, total_partial = torch.stack([some.sum(), num_partial.sum()]).tolist()

    cell = chosen(some, total_full)
    of_cell = line[cell // rounds]
    full = torch.stack([of_cell, torch.sub(start[cell], of_cell, alpha=spans.stride), num_full[cell]])
    cell, rank = spread(num_partial, total_partial)
    span = cell // rounds
    size = step[span]
    column = torch.addcmul(place[cell], rank, size)
    return full, torch.stack([line[span], column, torch.minimum(column + size, end[span])])


def _full_ranges(spans: Spans) -> Tensor:
    """(2, n, T): begin and end of the full ranges in each touched span, then empty ones at its end, at least one."""
    owner, end = spans.full[0], spans.touched[2]
    if len(owner) == 0:
        return end.expand(2, 1, -1)
    rank = torch.arange(len(owner), device=owner.device) - torch.searchsorted(owner, owner)
    ranges = end.repeat(2, int(rank.max()) + 2, 1)
    ranges[:, rank, owner] = spans.full[1:]
    return ranges
