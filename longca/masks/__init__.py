"""Masks: a band algebra, and patterns defined in it."""

from longca.masks.build import build_mask
from longca.masks.mask import Mask

__all__ = ["Mask", "build_mask"]
