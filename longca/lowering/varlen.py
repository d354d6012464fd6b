"""Packed sequences of one window, as FlashAttention's and cuDNN's varlen calls take them."""

import numpy as np

from longca.masks.forms import Varlen
from longca.masks.mask import Mask
from longca.masks.segments import diagonal_segments


def rectangle(mask: Mask) -> Varlen:
    """A full mask as one segment. Its length is the number of queries, whatever the number of keys."""
    return Varlen(np.array([0, mask.seqlen_q], dtype=np.int32), mask.seqlen_q, (-1, -1))


def varlen(mask: Mask) -> Varlen:
    """The segments of a mask. Raises ValueError if it is not made of squares along the diagonal that share one window."""
    segments = diagonal_segments(mask)
    if segments is None:
        raise ValueError("the mask is not a row of segments under one window")
    return Varlen(segments.bounds.astype(np.int32), int(np.diff(segments.bounds).max()), segments.window)
