"""FlexAttention's own forms: the element test and the BlockMask, both straight from bands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from longca.kernels.lowering.mask_mod import mask_mod
from longca.kernels.lowering.ranges import Csr
from longca.kernels.lowering.tiles import col_tiles, row_tiles
from longca.masks.mask import Mask

if TYPE_CHECKING:
    import torch
    from torch.nn.attention.flex_attention import BlockMask

__all__ = ["block_mask", "mask_mod"]


def block_mask(mask: Mask, device: torch.device | str, num_q_heads: int = 1, block_size: int | tuple[int, int] = 128, *,
               narrow: bool | None = None) -> BlockMask:
    """The BlockMask of one batch entry, full and partial blocks apart, for queries and for keys.

    A block that sticks out of Sq × Sk is partial, as `create_block_mask` has it, since not every backend checks bounds in
    full blocks.

    Args:
        num_q_heads: of the attention call; where head groups differ every query head gets its lists.
        block_size: of queries and keys, or (queries, keys).
        narrow: index lists as wide as the longest of them instead of one slot for every block of the row. Torch's Triton
            backend takes them; its CPU backend, the FLASH backend and `BlockMask.to_dense` do not. By default on CUDA.
    """
    import torch
    from torch.nn.attention.flex_attention import BlockMask

    device = torch.device(device)
    narrow = device.type == "cuda" if narrow is None else narrow
    size_q, size_k = (block_size, block_size) if isinstance(block_size, int) else block_size
    share = num_q_heads // mask.num_groups if mask.num_groups > 1 else 1
    rows = [row_tiles(mask, size_q, size_k, group, whole=True) for group in range(mask.num_groups)]
    cols = [col_tiles(mask, size_q, size_k, group, whole=True) for group in range(mask.num_groups)]

    def on_device(lists: list[Csr], num_across: int) -> tuple[torch.Tensor, torch.Tensor]:
        counts, index = _lists(lists, num_across, narrow)
        counts, index = torch.from_numpy(counts).to(device), torch.from_numpy(index).to(device)
        return counts.repeat_interleave(share, 0)[None], index.repeat_interleave(share, 0)[None]

    q_side, k_side = rows[0].num_across, cols[0].num_across
    kv_counts, kv_index = on_device([tiles.partial for tiles in rows], q_side)
    full_kv_counts, full_kv_index = on_device([tiles.full for tiles in rows], q_side)
    q_counts, q_index = on_device([tiles.partial for tiles in cols], k_side)
    full_q_counts, full_q_index = on_device([tiles.full for tiles in cols], k_side)
    return BlockMask(
        seq_lengths=(mask.seqlen_q, mask.seqlen_k), BLOCK_SIZE=(size_q, size_k), mask_mod=mask_mod(mask, device, num_q_heads),
        kv_num_blocks=kv_counts, kv_indices=kv_index, full_kv_num_blocks=full_kv_counts, full_kv_indices=full_kv_index,
        q_num_blocks=q_counts, q_indices=q_index, full_q_num_blocks=full_q_counts, full_q_indices=full_q_index)


def _lists(lists: list[Csr], num_across: int, narrow: bool) -> tuple[np.ndarray, np.ndarray]:
    """(counts, index) of every group: int32 (G, lines) and (G, lines, width)."""
    longest = max(int(np.diff(csr.offsets).max()) for csr in lists)
    counts, index = zip(*(csr.padded(max(longest, 1) if narrow else num_across) for csr in lists), strict=True)
    return np.stack(counts), np.stack(index)
