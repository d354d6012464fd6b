"""Mask formats of other libraries, and their conversion to bands.

| form | library | read here | written by |
|---|---|---|---|
| `Varlen` | FlashAttention, cuDNN: packed sequences | `of_cu_seqlens` | `longca.lowering.varlen` |
| ids, positions | trainers: packed sequences | `of_document_ids`, `of_position_ids` | – |
| `FlashMaskColumns` | FlashMask: for each key, the queries that do not see it | `of_flashmask` | `longca.lowering.flashmask` |
| a tree | rollouts: sequences that share prefixes | `of_tree` | – |
| `AttnSlices` | MagiAttention: rectangles of four types | `of_slices` | `longca.lowering.attnslice` |
| `BlockMask` | FlexAttention: lists of blocks and a test of pairs | `of_block_mask` | `longca.lowering.flex` |
| `BlockMap` | FlashInfer, VSA: blocks of any sizes | `of_block_map` | `longca.lowering.blocks` |
| a raster | SDPA: a bool for each pair | `of_dense` | `longca.lowering.dense` |

Arrays may be numpy arrays, tensors on any device, or lists. Invalid masks raise ValueError, which `refused`
turns into a UserError.
"""  # noqa: E501

from longca.masks.forms.flex import of_block_mask
from longca.masks.forms.packed import Documents, of_cu_seqlens, of_document_ids, of_position_ids, of_windows
from longca.masks.forms.tables import of_block_map, of_dense, of_flashmask, of_slices
from longca.masks.forms.tree import of_tree
from longca.masks.forms.types import AttnSlices, BlockMap, FlashMaskColumns, SliceType, Varlen, Window
from longca.masks.forms.values import check_total, refused, rows_of, whole_numbers

__all__ = [
    "AttnSlices",
    "BlockMap",
    "Documents",
    "FlashMaskColumns",
    "SliceType",
    "Varlen",
    "Window",
    "check_total",
    "of_block_map",
    "of_block_mask",
    "of_cu_seqlens",
    "of_dense",
    "of_document_ids",
    "of_flashmask",
    "of_position_ids",
    "of_slices",
    "of_tree",
    "of_windows",
    "refused",
    "rows_of",
    "whole_numbers",
]
