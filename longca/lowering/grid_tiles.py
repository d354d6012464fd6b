"""Tiles of a block grid, without going through its bands."""

import numpy as np

from longca.lowering.ranges import Runs, runs


def grid_tiles(visible: np.ndarray, row_bounds: np.ndarray, col_bounds: np.ndarray, tile_rows: int, tile_cols: int,
               whole: bool) -> tuple[Runs, Runs]:
    """(full, partial) runs of tiles: a tile is full iff all blocks that it meets are visible. Any tile and block sizes.

    Shapes: visible bool (M, N), row_bounds (M + 1,), col_bounds (N + 1,), every block with rows and columns.
    """
    first_row, num_rows = _met(row_bounds, tile_rows)
    first_col, num_cols = _met(col_bounds, tile_cols)
    dtype = np.uint8 if num_rows.max(initial=0) * num_cols.max(initial=0) < 1 << 8 else np.uint32
    seen = _sums(_sums(visible.view(np.uint8), first_row, num_rows, 0, dtype), first_col, num_cols, 1, dtype)
    full, touched = seen == np.multiply.outer(num_rows.astype(dtype), num_cols.astype(dtype)), seen > 0
    if whole:
        full[row_bounds[-1] // tile_rows:] = False
        full[:, col_bounds[-1] // tile_cols:] = False
    return Runs.of(*runs(full), len(full)), Runs.of(*runs(touched & ~full), len(full))


def _met(bounds: np.ndarray, tile: int) -> tuple[np.ndarray, np.ndarray]:
    """First block that each tile meets, and how many it meets."""
    edges = np.append(np.arange(0, bounds[-1], tile), bounds[-1])
    first = np.searchsorted(bounds, edges[:-1], side="right") - 1
    return first, np.searchsorted(bounds, edges[1:], side="left") - first


def _sums(values: np.ndarray, first: np.ndarray, length: np.ndarray, axis: int, dtype: type) -> np.ndarray:
    """Sums over ranges of an axis: as many steps as the longest of them is long."""
    if (length == 1).all() and len(first) == values.shape[axis]:
        return values
    nothing = values.shape[axis]  # a row or column of zeros, for ranges that are over
    values = np.pad(values, ((0, 1), (0, 0)) if axis == 0 else ((0, 0), (0, 1)))
    sums = values.take(first, axis=axis).astype(dtype)
    for step in range(1, int(length.max(initial=0))):
        sums += values.take(np.where(step < length, first + step, nothing), axis=axis)
    return sums
