"""FlexAttention's mask formats: the element test and the BlockMask, both derived directly from bands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from longca.core import UserError, whole_number
from longca.lowering.dense import usable_device
from longca.lowering.mask_mod import mask_mod
from longca.lowering.tiles import Runs, col_tiles, row_tiles
from longca.masks import Mask

if TYPE_CHECKING:
    import torch
    from torch.nn.attention.flex_attention import BlockMask

__all__ = ["block_mask", "mask_mod"]


def block_mask(
    mask: Mask,
    device: torch.device | str,
    num_q_heads: int = 1,
    block_size: int | tuple[int, int] = 128,
    bool_tables: bool = True,
) -> BlockMask:
    """The BlockMask of one batch entry, with lists of full and of partial blocks, for queries and for keys.

    A block that extends beyond Sq × Sk is partial, as in `create_block_mask`, since not every backend checks
    bounds in full blocks. Index lists have a slot for every block of the row: with shorter ones torch 2.11
    reads wrong blocks.

    Args:
        num_q_heads: query heads of the attention call; if head groups differ, every query head gets its own
            lists.
        block_size: tokens of a block, or (of queries, of keys).
        bool_tables: see `mask_mod`.
    """
    from torch.nn.attention.flex_attention import BlockMask

    sizes = block_size if isinstance(block_size, (list, tuple)) else (block_size, block_size)
    if len(sizes) != 2:
        raise UserError(
            f"Argument 'block_size' is {block_size!r}",
            todo="Give a whole number of tokens, or two: (of queries, of keys)",
        )
    size_q, size_k = (whole_number("Argument 'block_size'", size) for size in sizes)
    num_q_heads = whole_number("Argument 'num_q_heads'", num_q_heads)
    device = usable_device(device)
    share = num_q_heads // mask.num_groups if mask.num_groups > 1 else 1
    rows = [row_tiles(mask, size_q, size_k, group, whole=True) for group in range(mask.num_groups)]
    cols = [col_tiles(mask, size_q, size_k, group, whole=True) for group in range(mask.num_groups)]

    def lists(runs: list[Runs], num_across: int) -> tuple[torch.Tensor, torch.Tensor]:
        counts, index = _lists(runs, num_across, device)
        if share > 1:
            counts = counts.repeat_interleave(share, 0)
            index = index.repeat_interleave(share, 0)
        return counts[None], index[None]

    kv_counts, kv_index = lists([tiles.partial_runs for tiles in rows], rows[0].num_across)
    full_kv_counts, full_kv_index = lists([tiles.full_runs for tiles in rows], rows[0].num_across)
    q_counts, q_index = lists([tiles.partial_runs for tiles in cols], cols[0].num_across)
    full_q_counts, full_q_index = lists([tiles.full_runs for tiles in cols], cols[0].num_across)
    return BlockMask(
        seq_lengths=(mask.seqlen_q, mask.seqlen_k),
        BLOCK_SIZE=(size_q, size_k),
        mask_mod=mask_mod(mask, device, num_q_heads, bool_tables),
        kv_num_blocks=kv_counts,
        kv_indices=kv_index,
        full_kv_num_blocks=full_kv_counts,
        full_kv_indices=full_kv_index,
        q_num_blocks=q_counts,
        q_indices=q_index,
        full_q_num_blocks=full_q_counts,
        full_q_indices=full_q_index,
    )


def _lists(
    groups: list[Runs], num_across: int, device: torch.device | str
) -> tuple[torch.Tensor, torch.Tensor]:
    """The (counts, index), int32 (G, lines) and (G, lines, num_across), unused slots 0. Only runs are copied
    to the device.

    Along a line the index increases by one from slot to slot, except at the start of a run, so the index is
    the cumulative sum of these steps.
    """
    import torch

    lines = [runs.lines for runs in groups]
    slots, steps = zip(*(_steps(runs) for runs in groups), strict=True)
    counts = np.stack([runs.counts for runs in groups])
    index = torch.ones(*counts.shape, num_across, dtype=torch.int32, device=device)
    group = np.repeat(np.arange(len(groups)), [len(line) for line in lines])
    slot = torch.from_numpy(
        (group * counts.shape[1] + np.concatenate(lines)) * num_across + np.concatenate(slots)
    ).to(device)
    index.view(-1)[slot] = torch.from_numpy(np.concatenate(steps)).to(device)
    index.cumsum_(2)
    counts = torch.from_numpy(counts).to(device)
    index.masked_fill_(torch.arange(num_across, dtype=torch.int32, device=device) >= counts[..., None], 0)
    return counts, index


def _steps(runs: Runs) -> tuple[np.ndarray, np.ndarray]:
    """For each run, its first slot in its line, and the step from the preceding index to its first index."""
    start = runs.bounds[:, 0]
    end = runs.bounds[:, 1]
    upto = np.concatenate([[0], np.cumsum(end - start, dtype=np.int64)])
    slot = upto[:-1] - upto[runs.offsets[runs.lines]]
    before = np.where(slot > 0, np.append(np.int32(0), end)[:-1] - 1, 0)
    return slot, (start - before).astype(np.int32)
