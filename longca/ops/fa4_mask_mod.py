"""Element tests of masks for FlashAttention-4, in its CuTe language.

FlashAttention-4 compiles for each function that it is given, and knows them apart by their text and what they
capture: numbers only, so that masks of one shape share what was compiled.
"""

# CUTLASS and FlashAttention 4 need not be installed where types are checked
# pyright: reportMissingImports=false

from __future__ import annotations

import functools
from collections.abc import Callable

import cutlass
import cutlass.cute as cute
from flash_attn.cute import utils


@functools.cache
def interval_mask_mod(num_intervals: int, heads_per_group: int) -> Callable:
    """An element test: true if the key is in one of its row's intervals.

    It reads one table, int32 (groups, 2 · num_intervals, Sq): row i sees the keys from [2n, i] up to [2n + 1,
    i].

    Args:
        heads_per_group: query heads that share a mask.
    """

    @cute.jit
    def mask_mod(batch, head, q_idx, kv_idx, seqlen_info, aux_tensors):
        bounds = aux_tensors[0]
        group = head[0] // heads_per_group
        row = q_idx[0]
        start = utils.scalar_to_ssa(bounds[group, 0, row], cutlass.Int32)
        end = utils.scalar_to_ssa(bounds[group, 1, row], cutlass.Int32)
        visible = (kv_idx >= start) & (kv_idx < end)
        for slot in cutlass.range_constexpr(1, num_intervals):
            start = utils.scalar_to_ssa(bounds[group, 2 * slot, row], cutlass.Int32)
            end = utils.scalar_to_ssa(bounds[group, 2 * slot + 1, row], cutlass.Int32)
            visible = visible | ((kv_idx >= start) & (kv_idx < end))
        return visible

    return mask_mod


@functools.cache
def grid_mask_mod(heads_per_group: int) -> Callable:
    """An element test: true if the pair's block is visible.

    It reads three int32 tables: visible blocks (groups, M, N), the block of each row (groups, Sq), that of
    each key (groups, Sk).
    """

    @cute.jit
    def mask_mod(batch, head, q_idx, kv_idx, seqlen_info, aux_tensors):
        chosen, row_block, col_block = aux_tensors[0], aux_tensors[1], aux_tensors[2]
        group = head[0] // heads_per_group
        seen = utils.scalar_to_ssa(
            chosen[group, row_block[group, q_idx[0]], col_block[group, kv_idx[0]]], cutlass.Int32
        )
        return seen > utils.scalar_to_ssa(0, cutlass.Int32)

    return mask_mod
