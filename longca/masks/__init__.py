"""Masks: a band algebra, and patterns defined in it."""

from longca.masks.build import build_mask
from longca.masks.forms.tree import tree_position_ids, tree_predictions, unrolled_tokens
from longca.masks.mask import Mask

__all__ = ["Mask", "build_mask", "tree_position_ids", "tree_predictions", "unrolled_tokens"]
