"""The visible tiles of a kernel: full tiles, with all elements visible, and partial tiles."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from longca.masks import Mask
from longca.masks.band import HI, K0, K1, LO, Q0, Q1, areas, spread, transpose


def turned(matrix: np.ndarray) -> np.ndarray:
    """The transpose of a matrix of bytes, contiguous. It is computed in strips that fit a cache line, which
    is faster than one step."""
    out = np.empty(matrix.shape[::-1], dtype=matrix.dtype)
    for row in range(0, len(matrix), 16):
        out[:, row : row + 16] = matrix[row : row + 16].T
    return out


def runs(visible: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(row, start, end) of each run of True in the rows of a bool matrix, in row-major order."""
    padded = np.zeros((visible.shape[0], visible.shape[1] + 2), dtype=bool)
    padded[:, 1:-1] = visible
    # starts and ends alternate, since each run stays in its row
    changes = np.flatnonzero(padded[:, 1:] != padded[:, :-1])
    rows, start = np.divmod(changes[0::2], visible.shape[1] + 1)
    return rows, start, start + (changes[1::2] - changes[0::2])


@dataclass(frozen=True, eq=False)
class Csr:
    """A set of indices for each line, ascending: line l has `indices[offsets[l]:offsets[l + 1]]`."""

    offsets: np.ndarray  # int64 (lines + 1,)
    indices: np.ndarray  # int32 (entries,)


@dataclass(frozen=True, eq=False)
class Runs:
    """The same set as ranges: line l has every index in [start, end) of `bounds[offsets[l]:offsets[l +
    1]]`."""

    offsets: np.ndarray  # int64 (lines + 1,)
    bounds: np.ndarray  # int32 (runs, 2): start, end; ascending in a line, never touching

    @staticmethod
    def of(lines: np.ndarray, start: np.ndarray, end: np.ndarray, num_lines: int) -> "Runs":
        """Runs from (line, start, end) of each, sorted by line, then by start."""
        offsets = np.searchsorted(lines, np.arange(num_lines + 1)).astype(np.int64)
        return Runs(offsets, np.stack([start, end], axis=1).astype(np.int32))

    @property
    def lines(self) -> np.ndarray:
        """The line of each run, int64."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    @property
    def counts(self) -> np.ndarray:
        """Number of indices of each line, int32."""
        upto = np.concatenate([[0], np.cumsum(self.bounds[:, 1] - self.bounds[:, 0], dtype=np.int64)])
        return np.diff(upto[self.offsets]).astype(np.int32)

    @property
    def total(self) -> int:
        """Number of indices of all lines."""
        return int((self.bounds[:, 1] - self.bounds[:, 0]).sum(dtype=np.int64))

    def expand(self) -> Csr:
        """The same sets as lists of indices, in O(indices) time and memory."""
        start = self.bounds[:, 0]
        lengths = self.bounds[:, 1] - self.bounds[:, 0]
        place = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        assert place[-1] < 1 << 31, "places must fit int32 below"
        indices = np.arange(place[-1], dtype=np.int32)
        indices += np.repeat(start - place[:-1].astype(np.int32), lengths)
        return Csr(place[self.offsets], indices)


@dataclass(frozen=True, eq=False)
class Tiles:
    """The visible tiles of each line of tiles. The CSR forms are computed at their first use."""

    num_lines: int  # tiles along the axis that has the lists
    num_across: int  # tiles along the other axis
    full_runs: Runs
    partial_runs: Runs

    @cached_property
    def full(self) -> Csr:
        """Tiles in which all elements are visible."""
        return self.full_runs.expand()

    @cached_property
    def partial(self) -> Csr:
        """Tiles with visible and hidden elements; they need the element mask."""
        return self.partial_runs.expand()


def row_tiles(mask: Mask, tile_q: int, tile_k: int, group: int = 0, *, whole: bool = False) -> Tiles:
    """For each tile of queries, its tiles of keys. O(bands · query tiles) for bands; exact even if several
    bands share a tile.

    Args:
        whole: if True, a tile that extends beyond Sq × Sk is never full; otherwise only its part inside
            counts.
    """
    if mask.grid is not None:
        full, partial = _grid_tiles(*mask.grid.solid(group), tile_q, tile_k, whole)
    else:
        full, partial = _band_tiles(mask.groups[group], mask.seqlen_q, mask.seqlen_k, tile_q, tile_k, whole)
    return Tiles(-(-mask.seqlen_q // tile_q), -(-mask.seqlen_k // tile_k), full, partial)


def col_tiles(mask: Mask, tile_q: int, tile_k: int, group: int = 0, *, whole: bool = False) -> Tiles:
    """For each tile of keys, its tiles of queries: the transpose of `row_tiles`."""
    if mask.grid is not None:
        visible, q_bounds, k_bounds = mask.grid.solid(group)
        full, partial = _grid_tiles(turned(visible), k_bounds, q_bounds, tile_k, tile_q, whole)
    else:
        full, partial = _band_tiles(
            transpose(mask.groups[group]), mask.seqlen_k, mask.seqlen_q, tile_k, tile_q, whole
        )
    return Tiles(-(-mask.seqlen_k // tile_k), -(-mask.seqlen_q // tile_q), full, partial)


def tile_counts(
    mask: Mask, tile_q: int, tile_k: int, group: int = 0, *, columns: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of full and of partial tiles of each tile of queries, or of keys with `columns`, (lines,)
    int64 each: those of `row_tiles` or `col_tiles`, without their places."""
    if mask.grid is not None:
        tiles = (col_tiles if columns else row_tiles)(mask, tile_q, tile_k, group)
        return tiles.full_runs.counts.astype(np.int64), tiles.partial_runs.counts.astype(np.int64)
    if columns:
        return _band_counts(transpose(mask.groups[group]), mask.seqlen_k, mask.seqlen_q, tile_k, tile_q)
    return _band_counts(mask.groups[group], mask.seqlen_q, mask.seqlen_k, tile_q, tile_k)


def _band_counts(
    bands: np.ndarray, num_rows: int, num_cols: int, tile_rows: int, tile_cols: int
) -> tuple[np.ndarray, np.ndarray]:
    """`tile_counts` of bands. In a line of tiles that a single band meets, as most lines, its first and last
    tiles tell; the others are counted by `_band_tiles`."""
    num_lines = -(-num_rows // tile_rows)
    owner, line = spread(bands[:, Q0] // tile_rows, -(-bands[:, Q1] // tile_rows))
    alone = np.bincount(line, minlength=num_lines)[line] == 1
    full, partial = (np.zeros(num_lines, dtype=np.int64) for _ in range(2))
    if not alone.all():
        shared = bands[owner[~alone]]
        top = line[~alone] * tile_rows
        shared[:, Q0] = np.maximum(shared[:, Q0], top)
        shared[:, Q1] = np.minimum(shared[:, Q1], top + tile_rows)
        for count, runs_ in zip(
            (full, partial), _band_tiles(shared, num_rows, num_cols, tile_rows, tile_cols, False), strict=True
        ):
            count += runs_.counts
        owner, line = owner[alone], line[alone]
    q0, q1, k0, k1, lo, hi = bands.T.take(owner, axis=1)
    top = line * tile_rows
    row0 = np.maximum(q0, top)
    row1 = np.minimum(q1, top + tile_rows)
    # as in `_covered`; a tile at the end of the columns is full without those beyond
    start = np.maximum(k0, row0 + lo) // tile_cols
    end = -(-np.minimum(k1, row1 + hi) // tile_cols)
    inner1 = np.minimum(k1, row0 + 1 + hi)
    full0 = -(-np.maximum(k0, row1 - 1 + lo) // tile_cols)
    full1 = np.where(inner1 == num_cols, -(-num_cols // tile_cols), inner1 // tile_cols)
    all_rows = row1 - row0 == np.minimum(tile_rows, num_rows - top)
    number = np.where(all_rows, np.maximum(full1 - full0, 0), 0)
    full[line] += number
    partial[line] += end - start - number
    return full, partial


def _band_tiles(
    bands: np.ndarray, num_rows: int, num_cols: int, tile_rows: int, tile_cols: int, whole: bool
) -> tuple[Runs, Runs]:
    """Tiles of bands. The visible areas along a line are a cumulative sum of steps: each range of `_covered`
    contributes one step up and one down."""
    # ranges of two lines never touch
    num_lines = -(-num_rows // tile_rows)
    stride = -(-num_cols // tile_cols) + 1
    line, start_tile, end_tile, area = _covered(bands, tile_rows, tile_cols)
    key = np.concatenate([line * stride + start_tile, line * stride + end_tile])
    order = np.argsort(key)  # only sums over equal keys are used
    key = key[order]
    total = np.cumsum(np.concatenate([area, -area])[order])
    last = np.flatnonzero(np.diff(key, append=-1))
    start = key[last[:-1]]
    end = key[last[1:]]
    total = total[last[:-1]]
    start = start[total > 0]
    end = end[total > 0]
    total = total[total > 0]

    line = start // stride
    height = np.full(len(start), tile_rows)
    width = np.full(len(start), tile_cols)
    if not whole:
        height = np.minimum(height, num_rows - line * tile_rows)
        width = np.minimum(width, num_cols - (start - line * stride) * tile_cols)
    full = total == height * width
    joins = (start[1:] == end[:-1]) & (full[1:] == full[:-1])
    opens = np.append(True, ~joins)[: len(start)]
    closes = np.append(~joins, True)[: len(start)]
    line = line[opens]
    start = start[opens]
    end = end[closes]
    full = full[opens]
    start_tile = start - line * stride
    end_tile = end - line * stride
    return (
        Runs.of(line[full], start_tile[full], end_tile[full], num_lines),
        Runs.of(line[~full], start_tile[~full], end_tile[~full], num_lines),
    )


def _covered(
    bands: np.ndarray, tile_rows: int, tile_cols: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(line, start_tile, end_tile, area): in each of the tiles [start_tile, end_tile) of that line, some band
    has this area."""
    owner, line = spread(bands[:, Q0] // tile_rows, -(-bands[:, Q1] // tile_rows))
    b = bands[owner]
    row0 = np.maximum(b[:, Q0], line * tile_rows)
    row1 = np.minimum(b[:, Q1], (line + 1) * tile_rows)
    # starts and ends of a band's rows never decrease: their union is [left, right), and every row contains
    # [inner0, inner1)
    left = np.maximum(b[:, K0], row0 + b[:, LO])
    right = np.minimum(b[:, K1], row1 + b[:, HI])
    inner0 = np.maximum(b[:, K0], row1 - 1 + b[:, LO])
    inner1 = np.minimum(b[:, K1], row0 + 1 + b[:, HI])
    start_tile = left // tile_cols
    end_tile = -(-right // tile_cols)
    full0 = -(-inner0 // tile_cols)
    full1 = inner1 // tile_cols
    none = full0 >= full1
    full0 = np.where(none, end_tile, full0)
    full1 = np.where(none, end_tile, full1)

    # in the few other tiles the area of the band must be computed
    piece, tile = spread(np.concatenate([start_tile, full1]), np.concatenate([full0, end_tile]))
    piece %= len(b)
    part = b[piece]
    part[:, Q0], part[:, Q1] = row0[piece], row1[piece]
    part[:, K0], part[:, K1] = (
        np.maximum(part[:, K0], tile * tile_cols),
        np.minimum(part[:, K1], (tile + 1) * tile_cols),
    )
    return (
        np.concatenate([line, line[piece]]),
        np.concatenate([full0, tile]),
        np.concatenate([full1, tile + 1]),
        np.concatenate([(row1 - row0) * tile_cols, areas(part)]),
    )


def _grid_tiles(
    visible: np.ndarray,
    row_bounds: np.ndarray,
    col_bounds: np.ndarray,
    tile_rows: int,
    tile_cols: int,
    whole: bool,
) -> tuple[Runs, Runs]:
    """The (full, partial) runs of tiles, for any tile and block sizes. A tile is full iff all blocks that it
    overlaps are visible.

    Shapes: visible bool (M, N), row_bounds (M + 1,), col_bounds (N + 1,). No block is empty.
    """
    first_row, num_rows = _met(row_bounds, tile_rows)
    first_col, num_cols = _met(col_bounds, tile_cols)
    dtype = np.uint8 if num_rows.max(initial=0) * num_cols.max(initial=0) < 1 << 8 else np.uint32
    seen = _sums(_sums(visible.view(np.uint8), first_row, num_rows, 0, dtype), first_col, num_cols, 1, dtype)
    full = seen == np.multiply.outer(num_rows.astype(dtype), num_cols.astype(dtype))
    touched = seen > 0
    if whole:
        full[row_bounds[-1] // tile_rows :] = False
        full[:, col_bounds[-1] // tile_cols :] = False
    return Runs.of(*runs(full), len(full)), Runs.of(*runs(touched & ~full), len(full))


def _met(bounds: np.ndarray, tile: int) -> tuple[np.ndarray, np.ndarray]:
    """The first block that each tile overlaps, and the number of blocks that it overlaps."""
    edges = np.append(np.arange(0, bounds[-1], tile), bounds[-1])
    first = np.searchsorted(bounds, edges[:-1], side="right") - 1
    return first, np.searchsorted(bounds, edges[1:], side="left") - first


def _sums(values: np.ndarray, first: np.ndarray, length: np.ndarray, axis: int, dtype: type) -> np.ndarray:
    """Sums over ranges of an axis, in as many steps as the longest range has elements."""
    if (length == 1).all() and len(first) == values.shape[axis]:
        return values
    nothing = values.shape[axis]  # index of a row or column of zeros, for ranges that have ended
    values = np.pad(values, ((0, 1), (0, 0)) if axis == 0 else ((0, 0), (0, 1)))
    sums = values.take(first, axis=axis).astype(dtype)
    for step in range(1, int(length.max(initial=0))):
        sums += values.take(np.where(step < length, first + step, nothing), axis=axis)
    return sums
