"""Tiles of a block grid, without going through its bands."""

import numpy as np

from longca.kernels.lowering.ranges import Runs, runs


def grid_tiles(visible: np.ndarray, row_bounds: np.ndarray, col_bounds: np.ndarray, tile_rows: int, tile_cols: int,
               whole: bool) -> tuple[Runs, Runs]:
    """(full, partial) runs of tiles: a tile is full iff all blocks that it meets are visible. Any tile and block sizes.

    Shapes: visible bool (M, N), row_bounds (M + 1,), col_bounds (N + 1,).
    """
    rows, cols = _met(row_bounds, tile_rows), _met(col_bounds, tile_cols)
    touched = _reduce(np.logical_or, visible, rows, cols)
    full = _reduce(np.logical_and, visible, rows, cols)
    if whole:
        full[row_bounds[-1] // tile_rows:] = False
        full[:, col_bounds[-1] // tile_cols:] = False
    return tuple(Runs.of(*runs(chosen), len(chosen)) for chosen in (full, touched & ~full))


def _met(bounds: np.ndarray, tile: int) -> tuple[np.ndarray, np.ndarray]:
    """Blocks [first, behind) that each tile meets."""
    edges = np.append(np.arange(0, bounds[-1], tile), bounds[-1])
    return np.searchsorted(bounds, edges[:-1], side="right") - 1, np.searchsorted(bounds, edges[1:], side="left")


def _reduce(operation: np.ufunc, visible: np.ndarray, rows: tuple[np.ndarray, np.ndarray],
            cols: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """`operation` over the blocks of each tile: bool (row tiles, column tiles)."""
    return _along(operation, _along(operation, visible, *rows).T, *cols).T


def _along(operation: np.ufunc, values: np.ndarray, first: np.ndarray, behind: np.ndarray) -> np.ndarray:
    """Reduction of the rows [first, behind) for each pair: as many steps as the longest range has rows."""
    result = values[first]
    for step in range(1, int((behind - first).max())):
        longer = np.flatnonzero(first + step < behind)
        result[longer] = operation(result[longer], values[first[longer] + step])
    return result
