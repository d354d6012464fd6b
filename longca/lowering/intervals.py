"""Row and column intervals: for each query the keys that it sees, for each key the queries that see it, as
sorted ranges."""

import numpy as np

from longca.lowering.ranges import fill, runs, turned
from longca.masks import Mask
from longca.masks.band import spread, transpose


def row_intervals(mask: Mask, group: int = 0) -> np.ndarray:
    """Row i sees keys [a0, b0) U [a1, b1) U …: int32 (Sq, 2n), row i being a0, b0, a1, b1, …

    Intervals are ascending, disjoint and never touch. n is the largest number of any row, at least 1. Unused
    slots are last and have a = b = Sk. O(Sq · n) time and memory, for bands and for block grids.
    """
    if mask.grid is not None:
        return _of_blocks(*mask.grid.solid(group), mask.seqlen_k)
    return _of_bands(mask.groups[group], mask.seqlen_q, mask.seqlen_k)


def col_intervals(mask: Mask, group: int = 0) -> np.ndarray:
    """Key j is seen by queries [a0, b0) U [a1, b1) U …: int32 (Sk, 2n), as in `row_intervals`; unused slots
    have a = b = Sq."""
    if mask.grid is not None:
        visible, q_bounds, k_bounds = mask.grid.solid(group)
        return _of_blocks(turned(visible), k_bounds, q_bounds, mask.seqlen_q)
    return _of_bands(transpose(mask.groups[group]), mask.seqlen_k, mask.seqlen_q)


def interval_table(mask: Mask) -> np.ndarray:
    """`row_intervals` of all head groups, transposed so that equal bounds of successive rows are contiguous:
    int32 (G, 2n, Sq)."""
    tables = [row_intervals(mask, group) for group in range(mask.num_groups)]
    out = np.full(
        (len(tables), max(table.shape[1] for table in tables), mask.seqlen_q), mask.seqlen_k, dtype=np.int32
    )
    for group, table in enumerate(tables):
        out[group, : table.shape[1]] = table.T
    return out


def cudnn_row_intervals(mask: Mask, num_q_heads: int = 1) -> np.ndarray:
    """Row intervals in the form of `cudnn.flex_attention`: row i sees [0, F0) U [F1, F2) U [F3, F4) …

    Returns:
        int32 (1 or num_q_heads, nfunc, Sq), nfunc odd; one head if all share the mask.

    Raises:
        ValueError: the number of query heads is not a multiple of the number of head groups.
    """
    if num_q_heads % mask.num_groups:
        raise ValueError(
            f"{num_q_heads} query heads cannot be shared evenly among {mask.num_groups} head groups"
        )
    tables = [_leading(row_intervals(mask, group), mask.seqlen_k) for group in range(mask.num_groups)]
    width = max(table.shape[1] for table in tables)
    padded = np.stack(
        [
            np.pad(table, ((0, 0), (0, width - table.shape[1])), constant_values=mask.seqlen_k).T
            for table in tables
        ]
    )
    return padded if mask.num_groups == 1 else np.repeat(padded, num_q_heads // mask.num_groups, axis=0)


def _of_bands(bands: np.ndarray, num_rows: int, num_cols: int) -> np.ndarray:
    """Intervals of bands. The rows are split into stretches; in a stretch each bound is fixed or moves by one
    column a row.

    Within a stretch disjoint bands keep their order, and two of them are adjacent either in all rows or in
    none. Proof: if a moving bound touched a fixed one in a single row, the bands would overlap in the row
    before or after it, unless a bound changes there. Such a row is the first or last of a band, or a bound
    starts or stops moving in it; each of these rows is a separate stretch.
    """
    q0, q1, k0, k1, lo, hi = bands.T
    turns = np.stack([q0, q1 - 1, np.clip(k0 - lo, q0, q1 - 1), np.clip(k1 - hi - 1, q0, q1 - 1)])
    cuts = np.unique(np.concatenate([[0, num_rows], turns.ravel(), turns.ravel() + 1]))
    heights = np.diff(cuts)
    band, stretch = spread(np.searchsorted(cuts, q0), np.searchsorted(cuts, q1))
    order = np.lexsort((np.maximum(k0[band], cuts[stretch] + lo[band]), stretch))
    band = band[order]
    stretch = stretch[order]
    row = cuts[stretch]
    start = np.maximum(k0[band], row + lo[band])
    start_moves = row + lo[band] > k0[band]
    end = np.minimum(k1[band], row + hi[band] + 1)
    end_moves = row + hi[band] + 1 < k1[band]
    touches = (stretch[1:] == stretch[:-1]) & (end[:-1] == start[1:])
    touches &= (end_moves[:-1] == start_moves[1:]) | (heights[stretch[1:]] == 1)
    opens = np.append(True, ~touches)[: len(band)]
    closes = np.append(~touches, True)[: len(band)]
    counts = np.bincount(stretch[opens], minlength=len(heights))
    num_slots = max(int(counts.max(initial=0)), 1)

    table = np.empty((num_rows, 2 * num_slots), dtype=np.int32)
    for side, (value, moves, kept) in enumerate(((start, start_moves, opens), (end, end_moves, closes))):
        fixed = fill(counts, (value - moves * row)[kept], num_slots, unused=num_cols)
        moving = fill(counts, moves[kept], num_slots)
        for slot in range(num_slots):
            table[:, 2 * slot + side] = np.repeat(fixed[:, slot], heights)
            if moving[:, slot].any():
                table[:, 2 * slot + side] += np.repeat(moving[:, slot], heights) * np.arange(
                    num_rows, dtype=np.int32
                )
    return table


def _of_blocks(
    visible: np.ndarray, row_bounds: np.ndarray, col_bounds: np.ndarray, num_cols: int
) -> np.ndarray:
    rows, start, end = runs(visible)
    counts = np.bincount(rows, minlength=len(visible))
    width = max(int(counts.max(initial=0)), 1)
    table = np.empty((len(visible), 2 * width), dtype=np.int32)
    table[:, 0::2] = fill(counts, col_bounds[start], width, num_cols)
    table[:, 1::2] = fill(counts, col_bounds[end], width, num_cols)
    return np.repeat(table, np.diff(row_bounds), axis=0)


def _leading(table: np.ndarray, seqlen_k: int) -> np.ndarray:
    """F0, F1, F2 … of each row: the interval that starts at key 0 comes first, without its start. Without
    such an interval, F0 is 0."""
    leads = table[:, :1] == 0
    shifted = np.pad(table[:, 2:], ((0, 0), (0, 2)), constant_values=seqlen_k)
    others = np.where(leads, shifted, table)
    num_used = int((others[:, 0::2] < others[:, 1::2]).sum(axis=1).max(initial=0))
    return np.hstack([np.where(leads, table[:, 1:2], 0), others[:, : 2 * num_used]]).astype(np.int32)
