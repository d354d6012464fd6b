"""Packed sequences of one window, as FlashAttention's and cuDNN's varlen calls take them."""

from dataclasses import dataclass

import numpy as np

from longca.masks.mask import Mask
from longca.masks.segments import diagonal_segments


@dataclass(frozen=True, eq=False)
class Varlen:
    """Segments of tokens that see no token of another segment, queries and keys alike."""

    cu_seqlens: np.ndarray  # int32 (segments + 1,), from 0 to the number of tokens
    max_seqlen: int
    window: tuple[int, int]  # inside a segment j - i is in [-left, right]; -1 for no bound


def rectangle(mask: Mask) -> Varlen:
    """All keys for all queries, as one segment: of the queries, whatever the number of keys."""
    return Varlen(np.array([0, mask.seqlen_q], dtype=np.int32), mask.seqlen_q, (-1, -1))


def varlen(mask: Mask) -> Varlen:
    """Raises ValueError for a mask that is not squares along the diagonal which share one window."""
    segments = diagonal_segments(mask)
    if segments is None:
        raise ValueError("the mask is not a row of segments under one window")
    return Varlen(segments.bounds.astype(np.int32), int(np.diff(segments.bounds).max()), segments.window)
