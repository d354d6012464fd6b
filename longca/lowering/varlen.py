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
    """Packed sequences of queries and of keys under one window; one for each band, so that the inverse
    conversion gives the same bands. A mask whose bands are no sequences is written as `varlen` does.

    Queries without visible keys, and keys that no query sees, become sequences without keys and without
    queries.
    """
    if mask.num_groups == 1:
        sequences = _sequences_of_bands(mask)
        if sequences is not None:
            return sequences
    return varlen(mask)


def _sequences_of_bands(mask: Mask) -> Varlen | None:
    """None if some band is not a whole sequence, or if bands do not share one window."""
    bands = mask.groups[0]
    begin_q, end_q, begin_k, end_k = bands[:, [Q0, Q1, K0, K1]].T
    before_q, before_k = (np.append(0, end) for end in (end_q, end_k))
    gap_q = np.append(begin_q, mask.seqlen_q) - before_q
    gap_k = np.append(begin_k, mask.seqlen_k) - before_k
    if min(gap_q.min(), gap_k.min()) < 0:
        return None
    shift = end_k - end_q
    length_q = end_q - begin_q
    length_k = end_k - begin_k
    left = shared_bound(shift - np.maximum(bands[:, LO], begin_k - end_q + 1), length_k)
    right = shared_bound(np.minimum(bands[:, HI], end_k - 1 - begin_q) - shift, length_q)
    if left is None or right is None:
        return None
    none = np.zeros_like(gap_q)
    lengths_q = np.stack([gap_q, none, np.append(length_q, 0)], axis=1).ravel()
    lengths_k = np.stack([none, gap_k, np.append(length_k, 0)], axis=1).ravel()
    kept = (lengths_q > 0) | (lengths_k > 0)
    of_queries, of_keys = (
        (np.append(0, np.cumsum(lengths[kept])).astype(np.int32), int(lengths.max()))
        for lengths in (lengths_q, lengths_k)
    )
    if np.array_equal(of_queries[0], of_keys[0]):
        return Varlen(*of_queries, (left, right))
    return Varlen(*of_queries, (left, right), *of_keys)
