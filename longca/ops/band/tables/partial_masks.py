"""The masks of partial blocks: the visible columns of each row. Equal masks are shared."""

from dataclasses import dataclass

import torch
from torch import Tensor

from longca.ops.band.tables.ranges import expand, segments, true_places
from longca.ops.band.tables.row_tiles import Intervals


@dataclass(frozen=True, eq=False)
class PartialBlocks:
    """Partial blocks with their masks. A block in which some row sees several intervals of columns has
    several entries."""

    # (3, P): list (`RowTiles`), column, mask, which counts from the first one of its `TileSpec`; sorted by
    # list and column
    blocks: Tensor
    # int32 (U, most rows), see `TileSchedule`, or (U, 1) if all rows see the same; those of each `TileSpec`
    # in turn
    masks: Tensor
    first: Tensor  # (V + 1,) first mask of each `TileSpec`; then U


def masks_of(intervals: Intervals, partial: Tensor) -> PartialBlocks:
    """Finds the masks of the partial blocks (3, P) that `cut_intervals` gives."""
    specs = intervals.row_tiles.specs
    tile, position, end = partial.unbind(0)
    width = max(spec.tile_m for spec in specs)
    base = width + max(spec.tile_n for spec in specs) + 1  # no field of a mask's key has as many values
    assert len(specs) * base**6 < 1 << 63
    if len(tile) == 0:
        return PartialBlocks(
            partial, tile.new_zeros(0, width, dtype=torch.int32), tile.new_zeros(len(specs) + 1)
        )
    slice_ = torch.searchsorted(intervals.slice_reach, position, right=True)
    count = torch.searchsorted(intervals.slice_starts, end) - slice_
    several = count > 1
    num_met, num_several = torch.stack([count.sum(), several.sum()]).tolist()
    if num_several == 0:
        fields, number = _relative(intervals, partial, slice_)
        masks, mask, number = _of_one_slice(fields, number, width, base)
    else:
        alone = true_places(~several, len(tile) - num_several)
        blocks = true_places(several, num_several)
        owner, rank = expand(count[blocks], num_met - len(alone))
        met = torch.cat([alone, blocks[owner]])
        slice_ = torch.cat([slice_[alone], slice_[blocks][owner] + rank])
        fields, number = _relative(intervals, partial.index_select(1, met), slice_)
        masks, mask, number = _of_one_slice(fields[:, : len(alone)], number[: len(alone)], width, base)
        depth, layers = _of_several_slices(owner, fields[:, len(alone) :], num_several, width, base)

        blocks = blocks[torch.repeat_interleave(depth, output_size=len(layers))]
        number, order = torch.sort(torch.cat([number, _spec_of(intervals, tile[blocks])]), stable=True)
        count = torch.arange(len(order), device=tile.device)
        mask = torch.empty_like(order).scatter_(0, order, count)[torch.cat([mask, count[len(masks) :]])]
        masks = torch.cat([masks, layers])[order]
        blocks, order = torch.sort(torch.cat([alone, blocks]), stable=True)
        mask = mask[order]
        tile, position, _ = partial.index_select(1, blocks).unbind(0)
    first = torch.searchsorted(number, torch.arange(len(specs) + 1, device=tile.device))
    column = torch.sub(position, tile, alpha=intervals.stride)
    return PartialBlocks(torch.stack([tile, column, mask - first[_spec_of(intervals, tile)]]), masks, first)


def _spec_of(intervals: Intervals, tile: Tensor) -> Tensor:
    return intervals.row_tiles.parts[2][intervals.row_tiles.part_of[tile]]


def _relative(intervals: Intervals, partial: Tensor, slice_: Tensor) -> tuple[Tensor, Tensor]:
    """Band slices relative to blocks: (6, n) row0, row1, start, end, lo, hi; and the place of each block's
    `TileSpec`, (n,)."""
    tile, position, end = partial.unbind(0)
    number, tile_m, tile_n = (
        intervals.row_tiles.parts[2:].index_select(1, intervals.row_tiles.part_of[tile]).unbind(0)
    )
    fields = intervals.slices.index_select(1, slice_)
    fields[2:] -= position
    fields[2].clamp_(min=0)
    torch.minimum(fields[3], end - position, out=fields[3])
    torch.maximum(torch.minimum(fields[4:], tile_n), -tile_m, out=fields[4:])
    return fields, number


def _of_one_slice(fields: Tensor, number: Tensor, width: int, base: int) -> tuple[Tensor, Tensor, Tensor]:
    """(masks, mask of each block, `TileSpec` of each mask) for blocks that meet one band slice, (6, n)."""
    key = number
    for field in fields:
        key = torch.add(field, key, alpha=base)
    keys, mask = torch.unique(key, return_inverse=True)
    example = torch.zeros_like(keys).scatter_(0, mask, torch.arange(len(mask), device=mask.device))
    fields = fields.index_select(1, example)[..., None]
    row = torch.arange(width, device=mask.device)
    start, end = _columns(fields, row)
    sees = (fields[0] <= row) & (row < fields[1]) & (start < end)
    return torch.where(sees, _packed(start, end), 0), mask, number[example]


def _of_several_slices(
    owner: Tensor, fields: Tensor, num_blocks: int, width: int, base: int
) -> tuple[Tensor, Tensor]:
    """(depth, masks) of blocks that several band slices meet.

    Adjacent intervals of a row are joined. A block has `depth` successive masks: the n-th has each row's n-th
    interval.
    """
    count = fields[1] - fields[0]
    slice_, rank = expand(count, int(count.sum()))
    row = fields[0][slice_] + rank
    position = owner[slice_] * width + row
    columns = torch.stack(_columns(fields.index_select(1, slice_), row))
    columns = (columns + position * base).index_select(1, torch.nonzero(columns[0] < columns[1]).squeeze(1))
    start, order = torch.sort(columns[0])
    end = columns[1][order]
    first, last = segments(start[1:] != end[:-1])
    start = start[first]
    end = end[last]
    position = start // base
    layer = torch.arange(len(position), device=position.device) - torch.searchsorted(position, position)
    block = position // width
    depth = torch.zeros(num_blocks, dtype=torch.int64, device=position.device).scatter_reduce_(
        0, block, layer + 1, "amax"
    )
    masks = torch.zeros(int(depth.sum()), width, dtype=torch.int32, device=position.device)
    masks[(torch.cumsum(depth, 0) - depth)[block] + layer, position % width] = _packed(
        start % base, end % base
    )
    return depth, masks


def _columns(fields: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
    """[start, end) that its rows see of a band slice; nothing if it ends first. Shapes: fields (6, …), row
    what broadcasts with …"""
    _, _, start, end, lo, hi = fields.unbind(0)
    return torch.maximum(start, row + lo), torch.minimum(end, row + hi + 1)


def _packed(start: Tensor, end: Tensor) -> Tensor:
    return (start | end << 16).to(torch.int32)
