"""Packed sequences under one window, the format of FlashAttention's and cuDNN's varlen calls."""

import numpy as np

from longca.masks import Mask, Varlen, diagonal_segments, shared_bound
from longca.masks.band import HI, K0, K1, LO, Q0, Q1


def rectangle(mask: Mask) -> Varlen:
    """A mask with all keys in one segment: a full one, or one whose queries are the last of more tokens under
    one window (`Traits.tail_window`). The length of the segment is the number of queries."""
    window = mask.traits.tail_window or (-1, -1)
    return Varlen(np.array([0, mask.seqlen_q], dtype=np.int32), mask.seqlen_q, window)


def varlen(mask: Mask) -> Varlen:
    """The segments of a mask. Raises ValueError if it is not made of squares along the diagonal that share
    one window."""
    segments = diagonal_segments(mask)
    if segments is None:
        raise ValueError("the mask is not a row of segments under one window")
    return Varlen(segments.bounds.astype(np.int32), int(np.diff(segments.bounds).max()), segments.window)


def packed_sequences(mask: Mask) -> Varlen:
    """The same as `varlen`, also for masks whose segments have different numbers of queries and keys. Each
    such segment must be one band.

    Queries without visible keys, and keys that no query sees, become segments without keys and without
    queries.
    """
    if mask.num_groups > 1 or diagonal_segments(mask) is not None:
        return varlen(mask)
    bands = mask.groups[0]
    begin_q, end_q, begin_k, end_k = bands[:, [Q0, Q1, K0, K1]].T
    before_q, before_k = (np.append(0, end) for end in (end_q, end_k))
    gap_q = np.append(begin_q, mask.seqlen_q) - before_q
    gap_k = np.append(begin_k, mask.seqlen_k) - before_k
    if min(gap_q.min(), gap_k.min()) < 0:
        raise ValueError("the mask is not a row of segments under one window")
    shift = end_k - end_q
    length_q = end_q - begin_q
    length_k = end_k - begin_k
    left = shared_bound(shift - np.maximum(bands[:, LO], begin_k - end_q + 1), length_k)
    right = shared_bound(np.minimum(bands[:, HI], end_k - 1 - begin_q) - shift, length_q)
    if left is None or right is None:
        raise ValueError("the mask is not a row of segments under one window")
    none = np.zeros_like(gap_q)
    segments_q = np.stack([gap_q, none, np.append(length_q, 0)], axis=1).ravel()
    segments_k = np.stack([none, gap_k, np.append(length_k, 0)], axis=1).ravel()
    kept = (segments_q > 0) | (segments_k > 0)
    segments_q = segments_q[kept]
    segments_k = segments_k[kept]
    cu_seqlens, cu_seqlens_k = (
        np.append(0, np.cumsum(lengths)).astype(np.int32) for lengths in (segments_q, segments_k)
    )
    return Varlen(cu_seqlens, int(segments_q.max()), (left, right), cu_seqlens_k, int(segments_k.max()))
