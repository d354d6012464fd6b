"""Spans of lines cut into steps: full ones, and partial ones with their shapes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from longca.ops.band_spans import Spans, Strips, spread


@dataclass(frozen=True, eq=False)
class Steps:
    """Runs of full steps and single partial steps, each sorted by line: the lists of `Spans`. Tensors are int64, but for the shapes."""

    full_line: Tensor
    full_column: Tensor
    full_count: Tensor
    part_line: Tensor
    part_column: Tensor
    part_shape: Tensor
    shapes: Tensor  # int32 (U, tile), see `Lines`


def cut_spans(spans: Spans, tile: int, step: int) -> Steps:
    """Greedily from the left of each touched span: as few steps as can be, and full ones where they fit."""
    num_spans = len(spans.begin)
    count = torch.bincount(spans.owner, minlength=num_spans)
    first = torch.cumsum(count, 0) - count
    most = int(count.max()) if num_spans else 0
    place = spans.begin
    part_from, part_count, full_from, full_count = [], [], [], []
    for rank in range(most + 1):
        if rank < most and len(spans.owner):
            has = rank < count
            which = torch.clamp(first + rank, max=len(spans.owner) - 1)
            full0, full1 = (torch.where(has, bound[which], spans.end) for bound in (spans.full0, spans.full1))
        else:
            full0 = full1 = spans.end
        parts = torch.clamp(-((place - full0) // step), min=0)
        part_from.append(place)
        part_count.append(parts)
        place = place + parts * step
        whole = torch.clamp((full1 - place) // step, min=0)
        full_from.append(place)
        full_count.append(whole)
        place = place + whole * step

    counts, starts = torch.stack(full_count, 1).flatten(), torch.stack(full_from, 1).flatten()
    some = torch.nonzero(counts).squeeze(1)
    of_line = spans.line.repeat_interleave(most + 1)
    group, rank = spread(torch.stack(part_count, 1).flatten())
    column = torch.stack(part_from, 1).flatten()[group] + rank * step
    part_line, end = of_line[group], spans.end.repeat_interleave(most + 1)[group]
    chosen, shape, shapes = _shapes(spans, part_line, column, torch.minimum(column + step, end), tile, step)
    return Steps(of_line[some], starts[some], counts[some], part_line[chosen], column[chosen], shape, shapes)


def _shapes(spans: Spans, line: Tensor, column: Tensor, limit: Tensor, tile: int, step: int) -> tuple[Tensor, Tensor, Tensor]:
    """(n, shape, shapes): partial step n has that shape; a step in which some row sees several runs of columns is there as often."""
    strips = spans.strips
    if len(line) == 0:
        return line, line, torch.zeros(1, tile, dtype=torch.int32, device=line.device)
    stride = int(torch.stack([strips.right.max(), limit.max()]).max()) + 1
    left, right = strips.line * stride + strips.left, torch.cummax(strips.line * stride + strips.right, 0).values
    first = torch.searchsorted(right, line * stride + column, right=True)
    count = torch.searchsorted(left, line * stride + limit) - first
    part, rank = spread(count)
    params, packed = _relative(strips, spans, first[part] + rank, line[part], column[part], limit[part], tile, step)
    several = (count > 1)[part]
    keys, inverse = torch.unique(packed[~several], return_inverse=True)
    one_of = torch.zeros_like(keys).scatter_(0, inverse, torch.nonzero(~several).squeeze(1))
    row = torch.arange(tile, device=line.device)
    begin, end = _intervals(params[one_of, :, None], row)
    shapes = (begin | end << 16).to(torch.int32)
    single = part[~several]
    if not bool(several.any()):
        return single, inverse, shapes if len(shapes) else shapes.new_zeros(1, tile)
    chosen, layer_shape, layers = _layers(part[several], params[several], tile, step)
    chosen, order = torch.sort(torch.cat([single, chosen]), stable=True)
    return chosen, torch.cat([inverse, layer_shape + len(shapes)])[order], torch.cat([shapes, layers])


def _relative(strips: Strips, spans: Spans, strip: Tensor, line: Tensor, column: Tensor, limit: Tensor, tile: int,
              step: int) -> tuple[Tensor, Tensor]:
    """A strip as a step sees it: (row0, row1, first, behind, lo, hi) within the tile, and the same in one number."""
    top, bottom = spans.top[line], spans.bottom[line]
    row0, row1 = strips.row0[strip] - top, strips.row1[strip] - top
    row1 = torch.where(strips.row1[strip] == bottom, tile, row1)  # what rows past a line's end see is no matter
    first = torch.clamp(strips.k0[strip] - column, 0, step)
    behind = torch.minimum(torch.clamp(strips.k1[strip] - column, max=step), limit - column)
    lo, hi = (torch.clamp(offset[strip] + top - column, -tile, step) for offset in (strips.lo, strips.hi))
    packed = row0
    for value, size in ((row1, tile), (first, step), (behind, step), (lo + tile, tile + step), (hi + tile, tile + step)):
        packed = packed * (size + 1) + value
    return torch.stack([row0, row1, first, behind, lo, hi], 1), packed


def _intervals(params: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
    """The columns [begin, end) of rows, 0 and 0 for none. Shapes: params (n, 6) or (n, 6, 1), row what its columns broadcast with."""
    row0, row1, first, behind, lo, hi = params.unbind(1)
    begin, end = torch.maximum(first, row + lo), torch.minimum(behind, row + hi + 1)
    sees = (row0 <= row) & (row < row1) & (begin < end)
    return torch.where(sees, begin, 0), torch.where(sees, end, 0)


def _layers(part: Tensor, params: Tensor, tile: int, step: int) -> tuple[Tensor, Tensor, Tensor]:
    """Shapes of steps that several strips meet: what a row sees is joined where it touches; layer n has each row's n-th run."""
    pair, rank = spread(params[:, 1] - params[:, 0])
    row = params[pair, 0] + rank
    begin, end = _intervals(params[pair], row)
    some = begin < end
    place, begin, end = (part[pair] * tile + row)[some], begin[some], end[some]
    order = torch.argsort(place * (step + 1) + begin)
    place, begin, end = place[order], begin[order], end[order]
    joins = (place[1:] == place[:-1]) & (begin[1:] == end[:-1])
    opens, closes = torch.ones_like(place, dtype=torch.bool), torch.ones_like(place, dtype=torch.bool)
    opens[1:], closes[:-1] = ~joins, ~joins
    place, begin, end = place[opens], begin[opens], end[closes]
    layer = torch.arange(len(place), device=place.device) - torch.searchsorted(place, place)
    steps, of_step = torch.unique_consecutive(place // tile, return_inverse=True)
    depth = torch.zeros_like(steps).scatter_reduce_(0, of_step, layer + 1, "amax")
    shape = (torch.cumsum(depth, 0) - depth)[of_step] + layer
    shapes = torch.zeros(int(depth.sum()), tile, dtype=torch.int32, device=place.device)
    shapes[shape, place % tile] = (begin | end << 16).to(torch.int32)
    owner, rank = spread(depth)
    return steps[owner], (torch.cumsum(depth, 0) - depth)[owner] + rank, shapes
