"""Row and column intervals: the keys that each query sees, and the queries that see each key, as sorted ranges."""

import numpy as np

from longca.lowering.ranges import fill, runs, turned
from longca.masks.band import transpose
from longca.masks.mask import Mask
from longca.masks.ragged import spread


def row_intervals(mask: Mask, group: int = 0) -> np.ndarray:
    """Row i sees keys [a0, b0) U [a1, b1) U …: int32 (Sq, 2n), row i being a0, b0, a1, b1, …

    Intervals are ascending, disjoint and never touch; n is the most of any row, at least 1; unused slots come last and
    hold a = b = Sk. O(Sq · n) time and memory, for bands and for block grids.
    """
    if mask.grid is not None:
        return _of_blocks(*mask.grid.solid(group), mask.seqlen_k)
    return _of_bands(mask.groups[group], mask.seqlen_q, mask.seqlen_k)


def col_intervals(mask: Mask, group: int = 0) -> np.ndarray:
    """Key j is seen by queries [a0, b0) U [a1, b1) U …: int32 (Sk, 2n), as `row_intervals`; unused slots hold a = b = Sq."""
    if mask.grid is not None:
        visible, q_bounds, k_bounds = mask.grid.solid(group)
        return _of_blocks(turned(visible), k_bounds, q_bounds, mask.seqlen_q)
    return _of_bands(transpose(mask.groups[group]), mask.seqlen_k, mask.seqlen_q)


def interval_table(mask: Mask) -> np.ndarray:
    """`row_intervals` of all head groups, with the same bound of successive rows contiguous in memory: int32 (G, 2n, Sq)."""
    tables = [row_intervals(mask, group) for group in range(mask.num_groups)]
    out = np.full((len(tables), max(table.shape[1] for table in tables), mask.seqlen_q), mask.seqlen_k, dtype=np.int32)
    for group, table in enumerate(tables):
        out[group, :table.shape[1]] = table.T
    return out


def cudnn_row_intervals(mask: Mask, num_q_heads: int = 1) -> np.ndarray:
    """The form of `cudnn.flex_attention`: row i sees [0, F0) U [F1, F2) U [F3, F4) …

    Returns:
        int32 (1 or num_q_heads, nfunc, Sq), nfunc odd; one head if all share the mask.

    Raises:
        ValueError: query heads that the head groups cannot share evenly.
    """
    if num_q_heads % mask.num_groups:
        raise ValueError(f"{num_q_heads} query heads cannot be shared evenly among {mask.num_groups} head groups")
    tables = [_leading(row_intervals(mask, group), mask.seqlen_k) for group in range(mask.num_groups)]
    width = max(table.shape[1] for table in tables)
    padded = np.stack([np.pad(table, ((0, 0), (0, width - table.shape[1])), constant_values=mask.seqlen_k).T for table in tables])
    return padded if mask.num_groups == 1 else np.repeat(padded, num_q_heads // mask.num_groups, axis=0)


def _of_bands(bands: np.ndarray, num_rows: int, num_cols: int) -> np.ndarray:
    """Cuts the rows into stretches in which nothing changes but that some ends move by one column a row.

    In a stretch disjoint bands keep their order, and two of them touch in all of its rows or in none. For where a moving
    end meets a fixed one they would overlap a row later or earlier, if nothing changed there: such a row is the first or
    last of a band, or one where an end starts or stops moving, and each of those is a stretch of its own.
    """
    q0, q1, k0, k1, lo, hi = bands.T
    turns = np.stack([q0, q1 - 1, np.clip(k0 - lo, q0, q1 - 1), np.clip(k1 - hi - 1, q0, q1 - 1)])
    cuts = np.unique(np.concatenate([[0, num_rows], turns.ravel(), turns.ravel() + 1]))
    heights = np.diff(cuts)
    band, stretch = spread(np.searchsorted(cuts, q0), np.searchsorted(cuts, q1))
    order = np.lexsort((np.maximum(k0[band], cuts[stretch] + lo[band]), stretch))
    band, stretch = band[order], stretch[order]
    row = cuts[stretch]
    start, start_moves = np.maximum(k0[band], row + lo[band]), row + lo[band] > k0[band]
    end, end_moves = np.minimum(k1[band], row + hi[band] + 1), row + hi[band] + 1 < k1[band]
    touches = (stretch[1:] == stretch[:-1]) & (end[:-1] == start[1:])
    touches &= (end_moves[:-1] == start_moves[1:]) | (heights[stretch[1:]] == 1)
    opens, closes = np.append(True, ~touches)[:len(band)], np.append(~touches, True)[:len(band)]
    counts = np.bincount(stretch[opens], minlength=len(heights))
    num_slots = max(int(counts.max(initial=0)), 1)

    table = np.empty((num_rows, 2 * num_slots), dtype=np.int32)
    for side, (value, moves, kept) in enumerate(((start, start_moves, opens), (end, end_moves, closes))):
        fixed = fill(counts, (value - moves * row)[kept], num_slots, unused=num_cols)
        moving = fill(counts, moves[kept], num_slots)
        for slot in range(num_slots):
            table[:, 2 * slot + side] = np.repeat(fixed[:, slot], heights)
            if moving[:, slot].any():
                table[:, 2 * slot + side] += np.repeat(moving[:, slot], heights) * np.arange(num_rows, dtype=np.int32)
    return table


def _of_blocks(visible: np.ndarray, row_bounds: np.ndarray, col_bounds: np.ndarray, num_cols: int) -> np.ndarray:
    rows, start, end = runs(visible)
    counts = np.bincount(rows, minlength=len(visible))
    width = max(int(counts.max(initial=0)), 1)
    table = np.empty((len(visible), 2 * width), dtype=np.int32)
    table[:, 0::2] = fill(counts, col_bounds[start], width, num_cols)
    table[:, 1::2] = fill(counts, col_bounds[end], width, num_cols)
    return np.repeat(table, np.diff(row_bounds), axis=0)


def _leading(table: np.ndarray, seqlen_k: int) -> np.ndarray:
    """F0, F1, F2 …: the interval at key 0 comes first and without its start; without one, F0 is 0."""
    leads = table[:, :1] == 0
    shifted = np.pad(table[:, 2:], ((0, 0), (0, 2)), constant_values=seqlen_k)
    others = np.where(leads, shifted, table)
    num_used = int((others[:, 0::2] < others[:, 1::2]).sum(axis=1).max(initial=0))
    return np.hstack([np.where(leads, table[:, 1:2], 0), others[:, :2 * num_used]]).astype(np.int32)
