"""Full and partial blocks of row tiles, from the intervals of a band mask, or from the visible blocks of a
block grid."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from longca.masks import BlockGrid
from longca.ops.band.tables.arrays import (
    Array,
    at_least,
    minimum,
    numbers,
    positions_in,
    prefix_sums,
    read,
    stack,
    zeros,
)
from longca.ops.band.tables.partial_masks import PartialBlocks
from longca.ops.band.tables.ranges import expand, true_places
from longca.ops.band.tables.row_tiles import Intervals, RowTiles


def cut_intervals(intervals: Intervals) -> tuple[Array, Array]:
    """Cuts intervals into blocks; partial blocks get their masks later.

    The cut is greedy from the left of each touched interval: as few blocks as possible, full ones where they
    fit.

    Returns:
        (3, F) row tile, column and number of contiguous full blocks; (3, P) row tile, position and its end of
        each partial block. Both are sorted by row tile and column.
    """
    tile, start, end = intervals.touched
    tile_n = intervals.row_tiles.parts[4][intervals.row_tiles.part_of[tile]]
    ranges = _full_ranges(intervals)
    place = start
    values = []
    for full_start, full_end in zip(ranges[0] + (tile_n - 1), ranges[1], strict=True):
        num_partial = at_least((full_start - place) // tile_n, 0)
        first_full = place + num_partial * tile_n
        num_full = at_least((full_end - first_full) // tile_n, 0)
        values += [place, num_partial, first_full, num_full]
        place = first_full + num_full * tile_n
    rounds = len(values) // 4
    # by interval, then by round
    place, num_partial, first_full, num_full = (
        stack(values[field::4], axis=1).reshape(-1) for field in range(4)
    )
    some = num_full > 0
    [(total_full, total_partial)] = read(stack([some.sum(), num_partial.sum()]))

    cell = true_places(some, total_full)  # of (interval, round)
    of_cell = tile[cell // rounds]
    full = stack([of_cell, first_full[cell] - of_cell * intervals.stride, num_full[cell]])
    cell, rank = expand(num_partial, total_partial)
    interval = cell // rounds
    size = tile_n[interval]
    position = place[cell] + rank * size
    return full, stack([tile[interval], position, minimum(position + size, end[interval])])


def _full_ranges(intervals: Intervals) -> Array:
    """(2, n, T): start and end of the full intervals in each touched interval, followed by at least one empty
    interval at its end."""
    owner = intervals.full[0]
    end = intervals.touched[2]
    if len(owner) == 0:
        return end[None, None] + zeros((2, 1, 1), end)
    rank = numbers(len(owner), owner) - positions_in(owner, owner)
    ranges = end[None, None] + zeros((2, int(rank.max()) + 2, 1), end)
    ranges[:, rank, owner] = intervals.full[1:]
    return ranges


def blocks_of_grid(
    grid: BlockGrid, row_tiles: RowTiles, device: torch.device
) -> tuple[Tensor, PartialBlocks]:
    """The blocks of a block grid: neighbouring visible grid blocks are full blocks and, where these do not
    fit, a partial one at the end.

    O(grid blocks).

    Returns:
        (3, F) list, column and number of contiguous full blocks; the partial blocks.
    """
    visible = _tensor(grid.visible, bool).to(device)
    stretches = {}
    for spec in row_tiles.specs:
        if spec.transposed not in stretches:
            stretches[spec.transposed] = (
                _visible_stretches(visible.transpose(1, 2), grid.q_bounds)
                if spec.transposed
                else _visible_stretches(visible, grid.k_bounds)
            )
    stretches = [stretches[spec.transposed] for spec in row_tiles.specs]
    counts = [
        (end - start) // spec.tile_n for spec, (_, start, end) in zip(row_tiles.specs, stretches, strict=True)
    ]
    rests = [
        (end - start) % spec.tile_n for spec, (_, start, end) in zip(row_tiles.specs, stretches, strict=True)
    ]
    totals = torch.stack([torch.count_nonzero(number) for number in (*counts, *rests)]).tolist()

    full = []
    partial = []
    num_lists = 0
    base = max(spec.tile_n for spec in row_tiles.specs)
    for number, (row, start, end) in enumerate(stretches):
        some = true_places(counts[number] > 0, totals[number])
        full.append(torch.stack([row[some] + num_lists, start[some], counts[number][some]]))
        some = true_places(rests[number] > 0, totals[len(stretches) + number])
        rest = rests[number][some]
        partial.append(torch.stack([row[some] + num_lists, end[some] - rest, rest + number * base]))
        num_lists += grid.num_groups * (grid.visible.shape[2 if row_tiles.specs[number].transposed else 1])
    return torch.cat(full, 1), _partial_blocks(torch.cat(partial, 1), len(stretches), base)


def _partial_blocks(partial: Tensor, num_specs: int, base: int) -> PartialBlocks:
    """Partial blocks whose third row says how many columns all rows see, plus `base` for each `TileSpec`
    before theirs."""
    list_, column, size = partial.unbind(0)
    seen = torch.zeros(num_specs, base, dtype=torch.int64, device=size.device)
    seen.view(-1).scatter_(0, size, 1)
    number = torch.cumsum(seen, 1) - 1
    table = torch.nonzero(seen)[:, 1:].to(torch.int32) << 16
    return PartialBlocks(
        torch.stack([list_, column, number.flatten()[size]]), table, prefix_sums(seen.sum(1))
    )


def _visible_stretches(visible: Tensor, bounds: np.ndarray) -> Sequence[Tensor]:
    """(row of grid blocks, first column, end column) of neighbouring visible grid blocks. Shapes: visible (G,
    M, N), bounds (G, N + 1)."""
    num_groups, num_rows, across = visible.shape
    padded = visible.new_zeros(num_groups * num_rows, across + 2)
    padded[:, 1:-1] = visible.reshape(len(padded), across)
    # one stretch after the other
    changes = torch.nonzero((padded[:, 1:] != padded[:, :-1]).flatten()).squeeze(1).view(-1, 2)
    row = changes[:, 0] // (across + 1)
    group = row // num_rows
    start, end = (
        _tensor(bounds, np.int64)
        .to(visible.device)
        .flatten()[(changes + ((group - row) * (across + 1))[:, None]).t()]
    )
    if (np.diff(bounds) == 0).any():  # grid blocks without columns
        row, start, end = torch.stack([row, start, end])[:, start < end]
    return row, start, end


def _tensor(array: np.ndarray, dtype: type) -> Tensor:
    """A tensor that shares the array's memory if torch supports its layout: not if it is read-only or has
    negative strides."""
    # NumPy reads a text as flags, one a letter, which its types do not say
    return torch.from_numpy(
        np.require(array, dtype, "CW")  # pyright: ignore[reportCallIssue, reportArgumentType]
    )
