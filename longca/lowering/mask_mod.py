"""The element test of FlexAttention: (b, h, q_idx, kv_idx) → True if visible."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from longca.lowering.blocks import block_of
from longca.lowering.dense import row_intervals
from longca.masks import Mask
from longca.masks.band import INF

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    MaskMod: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

_FEW_BANDS = 3  # up to this number, bands are tested by arithmetic; above, by a table of row intervals
_PADDING = 1024  # tables are padded to a multiple of this, so that indices of a padded block stay inside


def mask_mod(
    mask: Mask, device: torch.device | str, num_q_heads: int = 1, bool_tables: bool = True
) -> MaskMod:
    """A closure for `flex_attention`, compiled or not. Its captured tables are on the device.

    Its result for queries >= Sq and keys >= Sk is undefined, but up to the next multiple of 1024 it reads
    nothing out of bounds.

    Args:
        num_q_heads: query heads of the attention call; used if head groups differ.
        bool_tables: if False, a table of blocks is int32, for backends that cannot load single bytes as bool.
    """
    if num_q_heads % mask.num_groups:
        raise ValueError(
            f"{num_q_heads} query heads cannot be shared evenly among {mask.num_groups} head groups"
        )
    heads_per_group = num_q_heads // mask.num_groups
    if mask.grid is not None:
        return _by_block(mask, device, heads_per_group, bool_tables)
    if mask.num_groups == 1 and len(mask.bands) <= _FEW_BANDS:
        return _by_arithmetic(mask)
    return _by_row(mask, device, heads_per_group)


def _by_arithmetic(mask: Mask) -> MaskMod:
    tests = tuple(_inequalities(band, mask) for band in mask.bands.tolist())

    def visible(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        in_any = q_idx < 0
        for band in tests:
            in_band = q_idx >= 0
            for of_q, of_k, least in band:
                in_band = in_band & (_signed(of_q, q_idx, of_k, kv_idx) >= least)
            in_any = in_any | in_band
        return in_any

    return visible


def _inequalities(band: list[int], mask: Mask) -> tuple[tuple[int, int, int], ...]:
    """The (x, y, least) of each bound x·q + y·k >= least of a band that the mask's size does not already
    imply."""
    q0, q1, k0, k1, lo, hi = band
    bounds = (
        ((1, 0, q0), q0 > 0),
        ((-1, 0, 1 - q1), q1 < mask.seqlen_q),
        ((0, 1, k0), k0 > 0),
        ((0, -1, 1 - k1), k1 < mask.seqlen_k),
        ((-1, 1, lo), lo > -INF),
        ((1, -1, -hi), hi < INF),
    )
    return tuple(bound for bound, binds in bounds if binds)


def _signed(of_q: int, q_idx: Tensor, of_k: int, kv_idx: Tensor) -> Tensor:
    """The sum of_q · q + of_k · k without multiplications, for factors in {-1, 0, 1}."""
    if of_q and of_k:
        return q_idx - kv_idx if of_q > 0 else kv_idx - q_idx
    index, factor = (q_idx, of_q) if of_q else (kv_idx, of_k)
    return index if factor > 0 else -index


def _by_row(mask: Mask, device: torch.device | str, heads_per_group: int) -> MaskMod:
    import torch

    tables = [row_intervals(mask, group) for group in range(mask.num_groups)]
    padded = np.full(
        (max(table.shape[1] for table in tables), mask.num_groups, _padded(mask.seqlen_q)),
        mask.seqlen_k,
        np.int32,
    )
    for group, table in enumerate(tables):
        padded[: table.shape[1], group, : mask.seqlen_q] = table.T
    row = np.arange(mask.seqlen_q, dtype=np.int32)
    # a bound that moves with the row, as under a causal mask, needs no table
    bounds = tuple(
        int(column[0, 0])
        if (column[:, : mask.seqlen_q] - row == column[0, 0]).all()
        else torch.from_numpy(column if mask.num_groups > 1 else column[0]).to(device)
        for column in padded
    )
    per_head = mask.num_groups > 1

    def visible(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        in_any = q_idx < 0
        for slot in range(0, len(bounds), 2):
            ends = []
            for bound in bounds[slot : slot + 2]:
                if isinstance(bound, int):
                    ends.append(q_idx + bound)
                else:
                    ends.append(bound[h // heads_per_group, q_idx] if per_head else bound[q_idx])
            in_any = in_any | ((kv_idx >= ends[0]) & (kv_idx < ends[1]))
        return in_any

    return visible


def _by_block(mask: Mask, device: torch.device | str, heads_per_group: int, bool_tables: bool) -> MaskMod:
    import torch

    grid = mask.grid
    assert grid is not None
    sizes = grid.block_size
    if sizes is not None:
        row_of, col_of = sizes
        tail = [
            -(-_padded(length) // size)
            for length, size in zip((mask.seqlen_q, mask.seqlen_k), sizes, strict=True)
        ]
    else:
        row_of, col_of = (
            torch.from_numpy(_padded_blocks(bounds)).to(device) for bounds in (grid.q_bounds, grid.k_bounds)
        )
        tail = [size + 1 for size in grid.visible.shape[1:]]
    chosen = torch.zeros(mask.num_groups, *tail, dtype=torch.bool if bool_tables else torch.int32)
    chosen[:, : grid.visible.shape[1], : grid.visible.shape[2]] = torch.from_numpy(grid.visible)
    chosen = chosen.to(device)

    def visible(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        group = h // heads_per_group
        row = q_idx // row_of if isinstance(row_of, int) else row_of[group, q_idx]
        col = kv_idx // col_of if isinstance(col_of, int) else col_of[group, kv_idx]
        return chosen[group, row, col] if bool_tables else chosen[group, row, col] > 0

    return visible


def _padded_blocks(bounds: np.ndarray) -> np.ndarray:
    """The block of each index, int32 (G, padded length); the padding is a separate block after the others."""
    table = np.full((len(bounds), _padded(int(bounds[0, -1]))), bounds.shape[1] - 1, dtype=np.int32)
    for group, of_group in enumerate(bounds):
        table[group, : of_group[-1]] = block_of(of_group)
    return table


def _padded(length: int) -> int:
    return -(-length // _PADDING) * _PADDING
