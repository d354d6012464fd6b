"""Row and column intervals: the keys that each query sees, and the queries that see each key, as sorted ranges."""

import numpy as np

from longca.kernels.lowering.ranges import expand, fill, runs
from longca.masks.band import HI, INF, K0, K1, LO, Q0, Q1
from longca.masks.mask import Mask

_FAR = 1 << 30  # stands for ±INF in int32: beyond any offset, and i ± _FAR does not overflow


def row_intervals(mask: Mask, group: int = 0) -> np.ndarray:
    """Row i sees keys [a0, b0) U [a1, b1) U …: int32 (Sq, 2n), row i being a0, b0, a1, b1, …

    Intervals are ascending, disjoint and never touch; n is the most of any row, at least 1; unused slots come last and
    hold a = b = Sk. O(Sq · n) time and memory, for bands and for block grids.
    """
    if mask.grid is not None:
        return _of_blocks(mask.grid.visible[group], mask.grid.q_bounds[group], mask.grid.k_bounds[group])
    return _of_bands(mask.groups[group], mask.seqlen_q, mask.seqlen_k)


def col_intervals(mask: Mask, group: int = 0) -> np.ndarray:
    """Key j is seen by queries [a0, b0) U [a1, b1) U …: int32 (Sk, 2n), as `row_intervals`; unused slots hold a = b = Sq."""
    if mask.grid is not None:
        return _of_blocks(mask.grid.visible[group].T, mask.grid.k_bounds[group], mask.grid.q_bounds[group])
    return _of_bands(transposed(mask.groups[group]), mask.seqlen_k, mask.seqlen_q)


def cudnn_row_intervals(mask: Mask, num_q_heads: int = 1) -> np.ndarray:
    """The form of `cudnn.flex_attention`: row i sees [0, F0) U [F1, F2) U [F3, F4) …

    Returns:
        int32 (1 or num_q_heads, nfunc, Sq), nfunc odd; one head if all share the mask.
    """
    tables = [_leading(row_intervals(mask, group), mask.seqlen_k) for group in range(mask.num_groups)]
    width = max(table.shape[1] for table in tables)
    padded = np.stack([np.pad(table, ((0, 0), (0, width - table.shape[1])), constant_values=mask.seqlen_k).T for table in tables])
    return padded if mask.num_groups == 1 else np.repeat(padded, num_q_heads // mask.num_groups, axis=0)


def transposed(bands: np.ndarray) -> np.ndarray:
    """Bands over (key, query)."""
    b = bands[:, [K0, K1, Q0, Q1, HI, LO]]
    b[:, [LO, HI]] *= -1
    return b


def _of_bands(bands: np.ndarray, num_rows: int, num_cols: int) -> np.ndarray:
    # Between neighbouring ends of bands the same bands are active, and never change places: their intervals are disjoint
    # and move by at most one column a row.
    cuts = np.unique(np.concatenate([[0, num_rows], bands[:, Q0], bands[:, Q1]]))
    first = np.searchsorted(cuts, bands[:, Q0])
    spans = np.searchsorted(cuts, bands[:, Q1]) - first
    band, segment = np.repeat(np.arange(len(bands)), spans), expand(first, spans)
    start = np.maximum(bands[band, K0], cuts[segment] + bands[band, LO])
    band = band[np.lexsort((start, segment))]
    counts = np.bincount(segment, minlength=len(cuts) - 1)
    num_slots = max(int(counts.max()), 1)
    nothing = [0, 0, num_cols, num_cols, -INF, INF]  # what an unused slot is made of
    active = fill(counts, band, num_slots, unused=len(bands))
    k0, k1, lo, hi = np.clip(np.vstack([bands, nothing])[:, K0:], -_FAR, _FAR).astype(np.int32).T
    heights, row = np.diff(cuts), np.arange(num_rows, dtype=np.int32)
    table = np.empty((num_rows, 2 * num_slots), dtype=np.int32)
    for slot in range(num_slots):
        here = active[:, slot]
        table[:, 2 * slot] = np.maximum(np.repeat(k0[here], heights), row + np.repeat(lo[here], heights))
        table[:, 2 * slot + 1] = np.minimum(np.repeat(k1[here], heights), row + np.repeat(hi[here] + 1, heights))
    return _merged(table, num_cols)


def _merged(table: np.ndarray, num_cols: int) -> np.ndarray:
    """Touching intervals of a row as one."""
    starts, ends = table[:, 0::2], table[:, 1::2]
    used = starts < num_cols
    touching = (ends[:, :-1] == starts[:, 1:]) & used[:, 1:]
    if not touching.any():
        return table
    opens, closes = used.copy(), used.copy()
    opens[:, 1:] &= ~touching
    closes[:, :-1] &= ~touching
    counts = opens.sum(axis=1)
    width = int(counts.max())
    merged = np.empty((len(table), 2 * width), dtype=np.int32)
    merged[:, 0::2] = fill(counts, starts[opens], width, num_cols)
    merged[:, 1::2] = fill(counts, ends[closes], width, num_cols)
    return merged


def _of_blocks(visible: np.ndarray, row_bounds: np.ndarray, col_bounds: np.ndarray) -> np.ndarray:
    rows, first, behind = runs(visible)
    counts = np.bincount(rows, minlength=len(visible))
    width, num_cols = max(int(counts.max()), 1), int(col_bounds[-1])
    table = np.empty((len(visible), 2 * width), dtype=np.int32)
    table[:, 0::2] = fill(counts, col_bounds[first], width, num_cols)
    table[:, 1::2] = fill(counts, col_bounds[behind], width, num_cols)
    return np.repeat(table, np.diff(row_bounds), axis=0)


def _leading(table: np.ndarray, seqlen_k: int) -> np.ndarray:
    """F0, F1, F2 …: the interval at key 0 comes first and without its start; without one, F0 is 0."""
    leads = table[:, :1] == 0
    shifted = np.pad(table[:, 2:], ((0, 0), (0, 2)), constant_values=seqlen_k)
    others = np.where(leads, shifted, table)
    num_used = int((others[:, 0::2] < others[:, 1::2]).sum(axis=1).max())
    return np.hstack([np.where(leads, table[:, 1:2], 0), others[:, :2 * num_used]]).astype(np.int32)
