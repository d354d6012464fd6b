"""Block lists on the device, the same for all kernels that read block lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from longca.lowering import block_lists
from longca.masks import BlockGrid, Mask

if TYPE_CHECKING:
    import torch

    from longca.masks import Traits


@dataclass(frozen=True)
class BlockTables:
    """Visible blocks in ascending order, unused slots 0. There are L lists: one for each head, or one for
    each head group of the mask."""

    q_to_k: torch.Tensor  # int32 (L, q-blocks, most of any q-block)
    q_to_k_counts: torch.Tensor  # int32 (L, q-blocks)
    k_to_q: torch.Tensor  # int32 (L, k-blocks, most of any k-block)
    k_to_q_counts: torch.Tensor  # int32 (L, k-blocks)
    block_q: int
    block_k: int

    @property
    def num_bytes(self) -> int:
        tables = self.q_to_k, self.q_to_k_counts, self.k_to_q, self.k_to_q_counts
        return sum(table.numel() * table.element_size() for table in tables)


def block_tables(
    mask: Mask, device: torch.device, num_lists: int | None = None, *, of_keys: bool = True
) -> BlockTables:
    """The lists of a mask with blocks of one size.

    Args:
        num_lists: number of heads, for kernels with a list for each head; by default the mask's head groups.
        of_keys: if False, there are no lists of k-blocks.

    Raises ValueError for any other mask.
    """
    size = mask.grid.block_size if mask.grid is not None else None
    if size is None:
        raise ValueError("the mask is not made of blocks of one size")
    lists = block_lists(mask, device, of_keys=of_keys)
    share = 1 if num_lists is None else num_lists // mask.num_groups
    tables = lists.q_to_k, lists.q_to_k_counts, lists.k_to_q, lists.k_to_q_counts
    return BlockTables(
        *(table.repeat_interleave(share, 0) if share > 1 else table for table in tables),
        *size,  # pyright: ignore[reportCallIssue] - six are given in all
    )


def split_blocks(mask: Mask, size: int) -> Mask:
    """The same mask in square blocks of `size`; the mask's own block sizes must be multiples of it."""
    assert mask.grid is not None and mask.grid.block_size is not None
    block_q, block_k = mask.grid.block_size
    if (block_q, block_k) == (size, size):
        return mask
    if block_q % size or block_k % size or mask.seqlen_q % size or mask.seqlen_k % size:
        raise ValueError(
            f"blocks of {block_q} × {block_k} over {mask.seqlen_q} × {mask.seqlen_k} are not made of {size}s"
        )
    visible = np.repeat(np.repeat(mask.grid.visible, block_q // size, axis=1), block_k // size, axis=2)
    visible = visible[:, : mask.seqlen_q // size, : mask.seqlen_k // size]  # the last block may be shorter
    q_bounds, k_bounds = (
        np.tile(np.arange(0, seqlen + 1, size), (mask.num_groups, 1))
        for seqlen in (mask.seqlen_q, mask.seqlen_k)
    )
    grid = BlockGrid(np.ascontiguousarray(visible), q_bounds, k_bounds)
    return Mask(mask.seqlen_q, mask.seqlen_k, grid=grid, params=mask.params, name=mask.name)


def not_blocks_of(traits: Traits, size: int) -> str | None:
    """The reason why a mask is not made of whole square blocks of `size`; None if it is."""
    if not traits.is_block_grid:
        return "it takes block masks only"
    if traits.block_size is None:
        return "its blocks are all of one size"
    if any(block % size for block in traits.block_size):
        return f"its blocks are {size} × {size}: these are {traits.block_size[0]} × {traits.block_size[1]}"
    if traits.seqlen_q % size or traits.seqlen_k % size:
        return f"lengths must be multiples of {size}"
    return None
