"""The dense mask, the format of SDPA and the naive kernel; the intervals that it is painted from; and matrix
products under it, in which NaN and infinity reach only those who see them.

Intervals: for each query the keys that it sees, for each key the queries that see it, as sorted ranges.

Products: a hidden pair has weight 0, but 0 · NaN and 0 · inf are NaN: in a plain product one bad value of a
packed document would reach all others. Finite inputs take the plain product; to find out costs one sum over
each input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from longca.core import UserError
from longca.lowering.blocks import block_of
from longca.lowering.tiles import runs, turned
from longca.masks import Mask
from longca.masks.band import spread, transpose

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def usable_device(device: Any) -> torch.device:
    """The device of that name or number; the default device for None. The device is not initialised, so no
    GPU memory is allocated.

    Raises:
        UserError: torch does not know the device, or this machine lacks the GPU.
    """
    import torch

    try:
        found = torch.get_default_device() if device is None else torch.device(device)
    except (RuntimeError, TypeError):
        raise _refused(device, "torch knows no such device") from None
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise _refused(device, f"torch {torch.__version__} sees {torch.cuda.device_count()} GPUs")
    return found


def _refused(device: Any, why: str) -> UserError:
    return UserError(
        f"Argument 'device' is {str(device)!r}",
        why=why,
        todo="Give a device that this torch has, as 'cpu' or 'cuda:0'",
    )


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


def fill(counts: np.ndarray, values: np.ndarray, width: int, unused: int = 0) -> np.ndarray:
    """An int32 (rows, width) matrix. Row r contains the next `counts[r]` elements of `values`, then
    `unused`."""
    table = np.full((len(counts), width), unused, dtype=np.int32)
    if len(counts) and (counts == width).all():
        table[:] = values.reshape(table.shape)
    else:
        table[np.arange(width) < counts[:, None]] = values
    return table


_CHUNK_ELEMENTS = 1 << 26  # limits the memory of temporaries


def dense_mask(mask: Mask, device: torch.device | str) -> torch.Tensor:
    """The mask as bool (Sq, Sk), or (G, Sq, Sk) if head groups differ; True is visible. It is built on the
    device from intervals."""
    import torch

    out = torch.zeros(
        mask.num_groups, mask.seqlen_q, mask.seqlen_k, dtype=torch.bool, device=usable_device(device)
    )
    paint = _paint_bands if mask.grid is None else _paint_grid
    for group in range(mask.num_groups):
        paint(mask, group, out[group])
    return out[0] if mask.num_groups == 1 else out


def _paint_bands(mask: Mask, group: int, out: torch.Tensor) -> None:
    import torch

    table = torch.from_numpy(row_intervals(mask, group)).to(out.device)
    key = torch.arange(mask.seqlen_k, dtype=torch.int32, device=out.device)
    step = max(_CHUNK_ELEMENTS // max(mask.seqlen_k, 1), 1)
    for rows, bounds in zip(out.split(step), table.split(step), strict=True):
        for slot in range(0, bounds.shape[1], 2):
            rows |= (key >= bounds[:, slot, None]) & (key < bounds[:, slot + 1, None])


def _paint_grid(mask: Mask, group: int, out: torch.Tensor) -> None:
    import torch

    grid = mask.grid
    assert grid is not None
    visible = torch.tensor(grid.visible[group], device=out.device)
    q_block, k_block = (
        torch.from_numpy(block_of(bounds[group])).to(out.device) for bounds in (grid.q_bounds, grid.k_bounds)
    )
    torch.index_select(visible[:, k_block], 0, q_block, out=out)


def all_finite(*inputs: Tensor) -> bool:
    """False if one of the tensors has a NaN or an infinity, or if its sum overflows. On a GPU the host
    waits."""
    import torch

    return all(
        bool(torch.isfinite(x.sum(dtype=torch.float64 if x.dtype == torch.float64 else torch.float32)))
        for x in inputs
    )


def confined_product(weights: Tensor, visible: Tensor, x: Tensor) -> Tensor:
    """weights @ x, summed over visible pairs alone: with NaN and infinity of `x` where a row sees them.

    Args:
        weights: (…, n, m). Values at hidden pairs do not count, whatever they are.
        visible: bool, of the shape of `weights`.
        x: (…, m, p), of the dtype of `weights`.
    """
    import torch

    weights = weights.masked_fill(~visible, 0.0)
    product = weights @ x.masked_fill(~torch.isfinite(x), 0.0)

    def meets(pairs: Tensor, values: Tensor) -> Tensor:
        """True where a row has such a pair with such a value."""
        return (pairs.to(torch.float32) @ values.to(torch.float32)) > 0

    plus = x == torch.inf
    minus = x == -torch.inf
    is_nan = torch.isnan(x)
    up = meets(weights > 0, plus) | meets(weights < 0, minus)
    down = meets(weights > 0, minus) | meets(weights < 0, plus)
    invalid = (
        torch.isnan(product)
        | meets(visible, is_nan)
        | meets(visible & (weights == 0), plus | minus)
        | (up & down)
    )
    product = product.masked_fill(up, torch.inf).masked_fill(down, -torch.inf)
    return product.masked_fill(invalid, torch.nan)
