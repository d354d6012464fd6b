"""The dense mask, the format of SDPA and the naive kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.lowering.blocks import block_of
from longca.lowering.device import usable_device
from longca.lowering.intervals import row_intervals
from longca.masks import Mask

if TYPE_CHECKING:
    import torch

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
