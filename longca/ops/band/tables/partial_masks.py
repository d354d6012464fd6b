"""The masks of partial blocks: the visible columns of each row. Equal masks are shared."""

from dataclasses import dataclass

from longca.ops.band.tables.arrays import (
    Array,
    at_least,
    columns,
    concat,
    cumulative,
    distinct,
    inverse_of,
    largest_of,
    maximum,
    minimum,
    numbers,
    positions_in,
    read,
    repeated,
    short,
    sort,
    stack,
    true_positions,
    where,
    zeros,
)
from longca.ops.band.tables.ranges import expand, segments, true_places
from longca.ops.band.tables.row_tiles import Intervals


@dataclass(frozen=True, eq=False)
class PartialBlocks:
    """Partial blocks with their masks. A block in which some row sees several intervals of columns has
    several entries."""

    # (3, P): list (`RowTiles`), column, mask, which counts from the first one of its `TileSpec`; sorted by
    # list and column
    blocks: Array
    # int32 (U, most rows), see `TileSchedule`, or (U, 1) if all rows see the same; those of each `TileSpec`
    # in turn
    masks: Array
    first: Array  # (V + 1,) first mask of each `TileSpec`; then U


def masks_of(intervals: Intervals, partial: Array) -> PartialBlocks:
    """Finds the masks of the partial blocks (3, P) that `cut_intervals` gives."""
    specs = intervals.row_tiles.specs
    tile, position, end = partial
    width = max(spec.tile_m for spec in specs)
    base = width + max(spec.tile_n for spec in specs) + 1  # no field of a mask's key has as many values
    assert len(specs) * base**6 < 1 << 63
    if len(tile) == 0:
        return PartialBlocks(partial, zeros((0, width), tile, short=True), zeros((len(specs) + 1,), tile))
    slice_ = positions_in(intervals.slice_reach, position, right=True)
    count = positions_in(intervals.slice_starts, end) - slice_
    several = count > 1
    [(num_met, num_several)] = read(stack([count.sum(), several.sum()]))
    if num_several == 0:
        fields, number = _relative(intervals, partial, slice_)
        masks, mask, number = _of_one_slice(fields, number, width, base)
    else:
        alone = true_places(~several, len(tile) - num_several)
        blocks = true_places(several, num_several)
        owner, rank = expand(count[blocks], num_met - len(alone))
        met = concat([alone, blocks[owner]])
        slice_ = concat([slice_[alone], slice_[blocks][owner] + rank])
        fields, number = _relative(intervals, columns(partial, met), slice_)
        masks, mask, number = _of_one_slice(fields[:, : len(alone)], number[: len(alone)], width, base)
        depth, layers = _of_several_slices(owner, fields[:, len(alone) :], num_several, width, base)

        blocks = repeated(depth, len(layers), blocks)
        number, order = sort(concat([number, _spec_of(intervals, tile[blocks])]))
        count = numbers(len(order), tile)
        mask = inverse_of(order)[concat([mask, count[len(masks) :]])]
        masks = concat([masks, layers])[order]
        blocks, order = sort(concat([alone, blocks]))
        mask = mask[order]
        tile, position, _ = columns(partial, blocks)
    first = positions_in(number, numbers(len(specs) + 1, tile))
    column = position - tile * intervals.stride
    return PartialBlocks(stack([tile, column, mask - first[_spec_of(intervals, tile)]]), masks, first)


def _spec_of(intervals: Intervals, tile: Array) -> Array:
    return intervals.row_tiles.parts[2][intervals.row_tiles.part_of[tile]]


def _relative(intervals: Intervals, partial: Array, slice_: Array) -> tuple[Array, Array]:
    """Band slices relative to blocks: (6, n) row0, row1, start, end, lo, hi; and the place of each block's
    `TileSpec`, (n,)."""
    tile, position, end = partial
    number, tile_m, tile_n = columns(intervals.row_tiles.parts[2:], intervals.row_tiles.part_of[tile])
    fields = columns(intervals.slices, slice_)
    fields[2:] -= position
    fields[2] = at_least(fields[2], 0)
    fields[3] = minimum(fields[3], end - position)
    fields[4:] = maximum(minimum(fields[4:], tile_n), -tile_m)
    return fields, number


def _of_one_slice(fields: Array, number: Array, width: int, base: int) -> tuple[Array, Array, Array]:
    """(masks, mask of each block, `TileSpec` of each mask) for blocks that meet one band slice, (6, n)."""
    key = number
    for field in fields:
        key = field + key * base
    keys, mask = distinct(key)
    # any block with the key
    example = zeros(keys.shape, keys)
    example[mask] = numbers(len(mask), mask)
    fields = short(columns(fields, example))[..., None]  # none is larger than a tile
    row = short(numbers(width, mask))
    start, end = _columns(fields, row)
    sees = (fields[0] <= row) & (row < fields[1]) & (start < end)
    return where(sees, start | end << 16, 0), mask, number[example]


def _of_several_slices(
    owner: Array, fields: Array, num_blocks: int, width: int, base: int
) -> tuple[Array, Array]:
    """(depth, masks) of blocks that several band slices meet.

    Adjacent intervals of a row are joined. A block has `depth` successive masks: the n-th has each row's n-th
    interval.
    """
    count = fields[1] - fields[0]
    slice_, rank = expand(count, int(count.sum()))
    row = fields[0][slice_] + rank
    position = owner[slice_] * width + row
    start, end = _columns(columns(fields, slice_), row)
    some = true_positions(start < end)
    origin = position[some] * base
    start, order = sort(start[some] + origin)
    end = (end[some] + origin)[order]
    first, last = segments(start[1:] != end[:-1])
    start = start[first]
    end = end[last]
    position = start // base
    layer = numbers(len(position), position) - positions_in(position, position)
    block = position // width
    depth = largest_of(block, layer + 1, num_blocks)
    masks = zeros((int(depth.sum()), width), position, short=True)
    masks[(cumulative(depth) - depth)[block] + layer, position % width] = short(
        start % base | end % base << 16
    )
    return depth, masks


def _columns(fields: Array, row: Array) -> tuple[Array, Array]:
    """[start, end) that its rows see of a band slice; nothing if it ends first. Shapes: fields (6, …), row
    what broadcasts with …"""
    _, _, start, end, lo, hi = fields
    return maximum(start, row + lo), minimum(end, row + hi + 1)
