"""The row tiles of a mask, and the column intervals that each of them sees.

Rows are the axis of the row tiles: of queries, or, with `transposed`, of keys.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from longca.masks import BlockGrid, Mask
from longca.masks.band import Q0, Q1, transpose
from longca.ops.band.tables.arrays import (
    Array,
    columns,
    concat,
    cumulative,
    largest_so_far,
    maximum,
    minimum,
    moved,
    numbers,
    positions_in,
    repeated,
    sort,
    stack,
    true_positions,
    where,
    zeros,
)
from longca.ops.band.tables.ranges import expand, segments
from longca.ops.band.tables.schedule import TileSpec


@dataclass(frozen=True, eq=False)
class RowTiles:
    """The row tiles of all specs and head groups, numbered through all *parts*: a part is one head group
    under one `TileSpec`.

    Block lists are numbered in the same way. A row tile iterates over a block list: each row tile of bands
    has its own, those of one row of a block grid share one.

    Tables are int64 matrices with a row for each field, so that one operation moves all fields: on a GPU,
    launches dominate the time of planning.
    """

    specs: Sequence[TileSpec]
    num_tiles: list[int]  # (B,) row tiles of each part
    # (5, B + 1): first row tile, first list, place in `specs`, tile_m, tile_n; the last: numbers of tiles and
    # lists
    parts: Array
    part_of: Array  # (K,) of each list
    tiles: Array  # (3, L): part, first row, end of the rows
    list_of: Array | None  # (L,); None: each row tile has its own

    @property
    def num_groups(self) -> int:
        return len(self.num_tiles) // len(self.specs)


@dataclass(frozen=True, eq=False)
class Intervals:
    """The column intervals that row tiles of bands see. All tensors are int64.

    Column c of row tile n has the *position* n · stride + c, so that the columns of all row tiles lie on one
    axis.
    """

    row_tiles: RowTiles
    stride: int
    touched: Array  # (3, T): row tile, start, end; some row sees each of these positions; sorted, disjoint
    full: Array  # (3, F): touched interval, start, end; all rows see all of it; sorted, disjoint
    slice_starts: Array  # (N,) first position of each band slice; sorted
    slice_reach: Array  # (N,) largest end of all band slices so far
    # (6, N) visible part of one band in one row tile: rows [row0, row1) see positions [k0, k1) with lo <=
    # position - row <= hi
    slices: Array


def row_tiles_of(mask: Mask, specs: Sequence[TileSpec], device: torch.device | None) -> RowTiles:
    """Row tiles of bands begin at multiples of tile_m; those of a block grid stay within a row of blocks."""
    return _of_bands(mask, specs, device) if mask.grid is None else _of_grid(mask.grid, specs, device)


def _of_bands(mask: Mask, specs: Sequence[TileSpec], device: torch.device | None) -> RowTiles:
    parts = []
    num_tiles = []
    for number, spec in enumerate(specs):
        num_rows = mask.seqlen_k if spec.transposed else mask.seqlen_q
        for _ in range(mask.num_groups):
            parts.append(
                (
                    sum(num_tiles),
                    sum(num_tiles),
                    number,
                    spec.tile_m,
                    spec.tile_n,
                    num_rows,
                    -(-num_rows // spec.tile_m),
                )
            )
            num_tiles.append(parts[-1][-1])
    total = sum(num_tiles)
    of_part = moved(np.array([*parts, (total, total, 0, 0, 0, 0, 0)]), device)
    part = repeated(of_part[6], total)
    first, _, _, tile_m, _, num_rows, _ = columns(of_part, part)
    start = (numbers(total, part) - first) * tile_m
    return RowTiles(
        specs, num_tiles, of_part[:5], part, stack([part, start, minimum(start + tile_m, num_rows)]), None
    )


def _of_grid(grid: BlockGrid, specs: Sequence[TileSpec], device: torch.device | None) -> RowTiles:
    parts = []
    num_tiles = []
    blocks = []
    num_blocks = 0
    for number, spec in enumerate(specs):
        for bounds in grid.k_bounds if spec.transposed else grid.q_bounds:
            count = -(-np.diff(bounds) // spec.tile_m)
            blocks.append(np.column_stack([bounds[:-1], bounds[1:], count, np.full_like(count, len(parts))]))
            parts.append((sum(num_tiles), num_blocks, number, spec.tile_m, spec.tile_n))
            num_tiles.append(int(count.sum()))
            num_blocks += len(count)
    of_part = moved(np.array([*parts, (sum(num_tiles), num_blocks, 0, 0, 0)]), device)
    of_block = moved(np.concatenate(blocks), device)
    block, rank = expand(of_block[2], sum(num_tiles))
    top, bottom, _, part = columns(of_block, block)
    tile_m = of_part[3][part]
    start = top + rank * tile_m
    return RowTiles(
        specs, num_tiles, of_part, of_block[3], stack([part, start, minimum(start + tile_m, bottom)]), block
    )


def intervals_of(mask: Mask, row_tiles: RowTiles, device: torch.device | None) -> Intervals:
    """The intervals of a band mask. O(bands · row tiles that each overlaps)."""
    stride = max(mask.seqlen_q, mask.seqlen_k) + 1
    bands, num_met = _bands(mask, row_tiles)
    num_slices = int(num_met.sum())
    if num_slices == 0:
        nothing = zeros((6, 0), row_tiles.tiles)
        return Intervals(row_tiles, stride, nothing[:3], nothing[:3], nothing[0], nothing[0], nothing)
    band = repeated(moved(num_met, device), num_slices)
    q0, q1, k0, k1, lo, hi, before = columns(moved(bands, device), band)
    tile = before + numbers(num_slices, before)
    part, top, bottom = columns(row_tiles.tiles, tile)
    row0 = maximum(q0, top) - top
    row1 = minimum(q1, bottom) - top
    origin = tile * stride
    k0 = k0 + origin
    k1 = k1 + origin
    origin = origin + top
    lo = lo + origin
    hi = hi + origin
    # starts and ends of a band's rows never fall, so some of its rows see [left, right) and all of them
    # [inner0, inner1)
    left = maximum(k0, row0 + lo)
    right = minimum(k1, row1 + hi)
    inner0 = maximum(k0, row1 + lo - 1)
    inner1 = minimum(k1, row0 + hi + 1)
    full = _seen_by_all(
        inner0, maximum(inner0, inner1), row1 - row0, row_tiles.tiles[2] - row_tiles.tiles[1], stride
    )

    left, order = sort(left)
    # rows after the end of a row tile do not matter
    row1 = where(row1 == bottom - top, row_tiles.parts[3][part], row1)
    slices = columns(stack([row0, row1, k0, k1, lo, hi, tile, right]), order)
    reach = largest_so_far(slices[7])
    first, last = segments(left[1:] > reach[:-1])
    start = left[first]
    touched = stack([slices[6][first], start, reach[last]])
    full = stack([positions_in(start, full[0], right=True) - 1, *full])
    return Intervals(row_tiles, stride, touched, full, left, reach, slices[:6])


def _bands(mask: Mask, row_tiles: RowTiles) -> tuple[np.ndarray, np.ndarray]:
    """((n, 7), (n,)): bands of all parts, each with its first row tile less those that the bands before it
    meet; how many it meets."""
    bands = []
    first = []
    count = []
    before = 0
    for spec in row_tiles.specs:
        for band in mask.groups:
            band = transpose(band) if spec.transposed else band
            bands.append(band)
            first.append(band[:, Q0] // spec.tile_m + before)
            count.append(-(-band[:, Q1] // spec.tile_m) + before - first[-1])
            before += row_tiles.num_tiles[len(bands) - 1]
    num_met = np.concatenate(count)
    return np.column_stack(
        [np.concatenate(bands), np.concatenate(first) - np.cumsum(num_met) + num_met]
    ), num_met


def _seen_by_all(
    start: Array, end: Array, num_rows: Array, height: Array, stride: int
) -> tuple[Array, Array]:
    """Maximal sorted intervals (start, end) in which the rows of the given intervals add up to a whole row
    tile."""
    position, order = sort(concat([start, end]), stable=False)  # only sums over equal ones are used
    total = cumulative(concat([num_rows, -num_rows])[order])[:-1]
    start = position[:-1]
    end = position[1:]
    kept = true_positions((start < end) & (total == height[start // stride]))
    start = start[kept]
    end = end[kept]
    if len(kept) > 1:
        first, last = segments(start[1:] > end[:-1])
        start = start[first]
        end = end[last]
    return start, end
