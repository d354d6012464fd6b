"""Lowerings: masks in the input format of each backend, derived from bands or block grids."""

from typing import TYPE_CHECKING

from longca.core.lazy import face

if TYPE_CHECKING:
    from longca.lowering import flex, mask_mod, varlen
    from longca.lowering.attnslice import attn_slices
    from longca.lowering.blocks import block_lists, block_of
    from longca.lowering.dense import (
        all_finite,
        confined_product,
        cudnn_row_intervals,
        dense_mask,
        interval_table,
        usable_device,
    )
    from longca.lowering.flashmask import flashmask_columns
    from longca.lowering.tiles import col_tiles, row_tiles, tile_counts
else:
    __getattr__, __dir__ = face(__name__)

__all__ = [
    "all_finite",
    "attn_slices",
    "block_lists",
    "block_of",
    "col_tiles",
    "confined_product",
    "cudnn_row_intervals",
    "dense_mask",
    "flashmask_columns",
    "flex",
    "interval_table",
    "mask_mod",
    "row_tiles",
    "tile_counts",
    "usable_device",
    "varlen",
]
