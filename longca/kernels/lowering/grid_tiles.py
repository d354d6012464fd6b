"""Tiles of a block grid, without going through its bands."""

import numpy as np

from longca.kernels.lowering.ranges import Runs, runs


def grid_tiles(visible: np.ndarray, row_bounds: np.ndarray, col_bounds: np.ndarray, tile_rows: int, tile_cols: int,
               whole: bool) -> tuple[Runs, Runs]:
    """(full, partial) runs of tiles: a tile is full iff all blocks that it meets are visible. Any tile and block sizes.

    Shapes: visible bool (M, N), row_bounds (M + 1,), col_bounds (N + 1,), every block with rows and columns.
    """
    rows, cols = _met(row_bounds, tile_rows), _met(col_bounds, tile_cols)
    small = np.uint16 if tile_rows * tile_cols < 1 << 16 else np.uint32  # a tile meets at most as many blocks
    seen = _sums(_sums(np.ascontiguousarray(visible).view(np.uint8), *rows, small).T, *cols, small).T
    met = ((rows[1] - rows[0])[:, None] * (cols[1] - cols[0])).astype(small)
    full, touched = seen == met, seen > 0
    if whole:
        full[row_bounds[-1] // tile_rows:] = False
        full[:, col_bounds[-1] // tile_cols:] = False
    return Runs.of(*runs(full), len(full)), Runs.of(*runs(touched & ~full), len(full))


def _met(bounds: np.ndarray, tile: int) -> tuple[np.ndarray, np.ndarray]:
    """Blocks [first, behind) that each tile meets."""
    edges = np.append(np.arange(0, bounds[-1], tile), bounds[-1])
    return np.searchsorted(bounds, edges[:-1], side="right") - 1, np.searchsorted(bounds, edges[1:], side="left")


def _sums(values: np.ndarray, first: np.ndarray, behind: np.ndarray, dtype: type) -> np.ndarray:
    """Sum of the rows [first, behind) of each pair."""
    if (behind - first == 1).all():
        return values if len(first) == len(values) else values[first]
    upto = np.zeros((len(values) + 1, values.shape[1]), dtype=dtype)
    np.cumsum(values, axis=0, dtype=dtype, out=upto[1:])  # may wrap around; differences stay right
    return upto[behind] - upto[first]
