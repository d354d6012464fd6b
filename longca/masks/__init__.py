"""Masks: a band algebra, and patterns defined in it."""

from typing import TYPE_CHECKING

from longca.core.lazy import face
from longca.masks.build import build_mask
from longca.masks.forms.tree import tree_position_ids, tree_predictions, unrolled_tokens
from longca.masks.mask import Mask

if TYPE_CHECKING:
    from longca.masks import band
    from longca.masks.build import MaskBuilder, draw_again
    from longca.masks.contract import Draw, Pattern
    from longca.masks.forms.types import AttnSlices, BlockMap, FlashMaskColumns, SliceType, Varlen
    from longca.masks.grid import BlockGrid
    from longca.masks.mask import LazyMask, breaks_graph, whole_mask
    from longca.masks.traits import Traits, diagonal_segments, shared_bound
else:
    __getattr__, __dir__ = face(__name__)

__all__ = [
    "AttnSlices",
    "BlockGrid",
    "BlockMap",
    "Draw",
    "FlashMaskColumns",
    "LazyMask",
    "Mask",
    "MaskBuilder",
    "Pattern",
    "SliceType",
    "Traits",
    "Varlen",
    "band",
    "breaks_graph",
    "build_mask",
    "diagonal_segments",
    "draw_again",
    "shared_bound",
    "tree_position_ids",
    "tree_predictions",
    "unrolled_tokens",
    "whole_mask",
]
