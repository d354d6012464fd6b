"""Block index lists, the format of block-sparse kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from longca.masks import BlockMap, Mask

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, eq=False)
class BlockIndexLists:
    """The visible blocks of each head group, ascending, unused slots 0.

    Shapes: G head groups, M q-blocks, N k-blocks; all int32, on the device.
    """

    q_to_k: torch.Tensor  # (G, M, most of any q-block)
    q_to_k_counts: torch.Tensor  # (G, M)
    k_to_q: torch.Tensor  # (G, N, most of any k-block)
    k_to_q_counts: torch.Tensor  # (G, N)


def block_lists(mask: Mask, device: torch.device | str = "cpu", *, of_keys: bool = True) -> BlockIndexLists:
    """The lists of a block grid. They are built on the device: 128K tokens in 64-blocks are 268 million pairs
    of blocks for 64 head groups.

    Args:
        of_keys: if False, the two lists of k-blocks are empty (N = 0); a forward pass does not need them.

    Raises:
        ValueError: the mask is not a block grid.
    """
    import torch

    if mask.grid is None:
        raise ValueError("the mask is not made of blocks")
    visible = torch.from_numpy(mask.grid.visible).to(device)
    return BlockIndexLists(
        *_lists(visible), *_lists(visible.transpose(1, 2)[:, slice(None if of_keys else 0)])
    )


def block_map(mask: Mask) -> BlockMap:
    """The blocks of a block grid, with their sizes. Raises ValueError for other masks."""
    if mask.grid is None:
        raise ValueError("the mask is not made of blocks")
    sizes_q, sizes_k = (
        np.diff(bounds, axis=1).astype(np.int32) for bounds in (mask.grid.q_bounds, mask.grid.k_bounds)
    )
    return BlockMap(sizes_q, sizes_k, mask.grid.visible.copy())


def block_of(bounds: np.ndarray) -> np.ndarray:
    """The block of each row (or column): int32 (bounds[-1],), from the (blocks + 1,) bounds of one group."""
    return np.repeat(np.arange(len(bounds) - 1, dtype=np.int32), np.diff(bounds))


def _lists(visible: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The (index, counts) of the True entries in each row of each group."""
    import torch

    counts = visible.sum(2, dtype=torch.int32)
    width = max(int(counts.max()), 1) if counts.numel() else 1
    index = torch.zeros(*counts.shape, width, dtype=torch.int32, device=visible.device)
    # one at a time, since `places` take eight times the memory of the grid
    for group, of_group in enumerate(visible):
        rows, cols = of_group.nonzero(as_tuple=True)
        places = of_group.cumsum(1)[rows, cols] - 1
        index[group, rows, places] = cols.int()
    return index, counts
