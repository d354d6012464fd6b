"""Shapes of partial steps: which columns each row sees; one for all steps that look alike."""

from dataclasses import dataclass

import torch
from torch import Tensor

from longca.ops.band.tables.ranges import chosen, spread, stretches
from longca.ops.band.tables.row_tiles import Spans


@dataclass(frozen=True, eq=False)
class Shapes:
    """Partial steps with their shapes. A step in which some row sees several runs of columns is there as often."""

    steps: Tensor  # (3, P): list (`Layout`), column, shape, which counts from the first one of its `Wanted`; sorted by list and column
    table: Tensor  # int32 (U, most rows), see `Lines`, or (U, 1) if all rows see the same; those of each `Wanted` in turn
    first: Tensor  # (V + 1,) of each `Wanted`; then U


def shapes_of(spans: Spans, partial: Tensor) -> Shapes:
    """Of the partial steps (3, P) that `cut_spans` gives."""
    wanted, (line, place, end) = spans.layout.wanted, partial.unbind(0)
    width = max(lines.tile for lines in wanted)
    base = width + max(lines.step for lines in wanted) + 1  # no field of a shape has as many values
    assert len(wanted) * base ** 6 < 1 << 63
    if len(line) == 0:
        return Shapes(partial, line.new_zeros(0, width, dtype=torch.int32), line.new_zeros(len(wanted) + 1))
    strip = torch.searchsorted(spans.reach, place, right=True)
    count = torch.searchsorted(spans.left, end) - strip
    several = count > 1
    num_met, num_several = torch.stack([count.sum(), several.sum()]).tolist()
    if num_several == 0:
        params, number = _relative(spans, partial, strip)
        table, shape, number = _alike(params, number, width, base)
    else:
        alone, steps = chosen(~several, len(line) - num_several), chosen(several, num_several)
        owner, rank = spread(count[steps], num_met - len(alone))
        met, strip = torch.cat([alone, steps[owner]]), torch.cat([strip[alone], strip[steps][owner] + rank])
        params, number = _relative(spans, partial.index_select(1, met), strip)
        table, shape, number = _alike(params[:, :len(alone)], number[:len(alone)], width, base)
        depth, layers = _layers(owner, params[:, len(alone):], num_several, width, base)

        steps = steps[torch.repeat_interleave(depth, output_size=len(layers))]
        number, order = torch.sort(torch.cat([number, _wanted(spans, line[steps])]), stable=True)
        count = torch.arange(len(order), device=line.device)
        shape = torch.empty_like(order).scatter_(0, order, count)[torch.cat([shape, count[len(table):]])]
        table = torch.cat([table, layers])[order]
        steps, order = torch.sort(torch.cat([alone, steps]), stable=True)
        shape, (line, place, _) = shape[order], partial.index_select(1, steps).unbind(0)
    first = torch.searchsorted(number, torch.arange(len(wanted) + 1, device=line.device))
    return Shapes(torch.stack([line, torch.sub(place, line, alpha=spans.stride), shape - first[_wanted(spans, line)]]), table, first)


def _wanted(spans: Spans, line: Tensor) -> Tensor:
    return spans.layout.parts[2][spans.layout.part_of[line]]


def _relative(spans: Spans, partial: Tensor, strip: Tensor) -> tuple[Tensor, Tensor]:
    """Strips as steps see them: (6, n) row0, row1, first, behind, lo, hi; and (n,) for which `Wanted`."""
    line, place, end = partial.unbind(0)
    number, tile, step = spans.layout.parts[2:].index_select(1, spans.layout.part_of[line]).unbind(0)
    params = spans.strips.index_select(1, strip)
    params[2:] -= place
    params[2].clamp_(min=0)
    torch.minimum(params[3], end - place, out=params[3])
    torch.maximum(torch.minimum(params[4:], step), -tile, out=params[4:])
    return params, number


def _alike(params: Tensor, number: Tensor, width: int, base: int) -> tuple[Tensor, Tensor, Tensor]:
    """(shapes, which one a step has, of which `Wanted` each is): those of steps that meet one strip, (6, n)."""
    key = number
    for field in params:
        key = torch.add(field, key, alpha=base)
    keys, shape = torch.unique(key, return_inverse=True)
    example = torch.zeros_like(keys).scatter_(0, shape, torch.arange(len(shape), device=shape.device))
    params, row = params.index_select(1, example)[..., None], torch.arange(width, device=shape.device)
    begin, end = _columns(params, row)
    sees = (params[0] <= row) & (row < params[1]) & (begin < end)
    return torch.where(sees, _packed(begin, end), 0), shape, number[example]


def _layers(owner: Tensor, params: Tensor, num_steps: int, width: int, base: int) -> tuple[Tensor, Tensor]:
    """(depth, shapes) of steps that several strips meet: what a row sees is joined where it touches; layer n has each row's n-th run."""
    count = params[1] - params[0]
    strip, rank = spread(count, int(count.sum()))
    row = params[0][strip] + rank
    place = owner[strip] * width + row
    runs = torch.stack(_columns(params.index_select(1, strip), row))
    runs = (runs + place * base).index_select(1, torch.nonzero(runs[0] < runs[1]).squeeze(1))
    begin, order = torch.sort(runs[0])
    end = runs[1][order]
    first, last = stretches(begin[1:] != end[:-1])
    begin, end = begin[first], end[last]
    place = begin // base
    layer = torch.arange(len(place), device=place.device) - torch.searchsorted(place, place)
    step = place // width
    depth = torch.zeros(num_steps, dtype=torch.int64, device=place.device).scatter_reduce_(0, step, layer + 1, "amax")
    shapes = torch.zeros(int(depth.sum()), width, dtype=torch.int32, device=place.device)
    shapes[(torch.cumsum(depth, 0) - depth)[step] + layer, place % width] = _packed(begin % base, end % base)
    return depth, shapes


def _columns(params: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
    """[begin, end) that its rows see of a strip; nothing if it ends first. Shapes: params (6, …), row what broadcasts with …"""
    _, _, first, behind, lo, hi = params.unbind(0)
    return torch.maximum(first, row + lo), torch.minimum(behind, row + hi + 1)


def _packed(begin: Tensor, end: Tensor) -> Tensor:
    return (begin | end << 16).to(torch.int32)
