"""Packed sequences of one window: what FlashAttention's and cuDNN's varlen calls are given."""

from dataclasses import dataclass

import numpy as np

from longca.masks.band import K0, K1, Q0, Q1
from longca.masks.mask import Mask


@dataclass(frozen=True, eq=False)
class Varlen:
    """Segments of tokens that see nothing of each other, queries and keys alike."""

    cu_seqlens: np.ndarray  # int32 (segments + 1,), from 0 to the number of tokens
    max_seqlen: int
    window: tuple[int, int]  # inside a segment j - i is in [-left, right]; -1 for no bound


def varlen(mask: Mask) -> Varlen:
    """Raises ValueError for a mask that is not squares along the diagonal which share one window."""
    traits = mask.traits
    if not traits.num_segments or traits.window is None:
        raise ValueError("the mask is not a row of segments with one window")
    bands = mask.bands
    begin, end = np.minimum(bands[:, Q0], bands[:, K0]), np.maximum(bands[:, Q1], bands[:, K1])
    order = np.argsort(begin, kind="stable")
    begin, reached = begin[order], np.maximum.accumulate(end[order])
    cu_seqlens = np.concatenate([[0], begin[1:][begin[1:] >= reached[:-1]], [mask.seqlen_q]]).astype(np.int32)
    assert len(cu_seqlens) == traits.num_segments + 1
    return Varlen(cu_seqlens, int(np.diff(cu_seqlens).max()), traits.window)
