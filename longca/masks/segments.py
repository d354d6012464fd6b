"""Masks that are squares along the diagonal under one window, as kernels for packed documents (varlen) take them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from longca.masks import band
from longca.masks.band import HI, INF, K0, K1, LO, Q0, Q1
from longca.masks.grid import BlockGrid
from longca.masks.ragged import spread


class Bands(Protocol):
    """The part of a `Mask` that traits and segments are derived from. A mask imports them, so they do not import it."""

    seqlen_q: int
    seqlen_k: int
    grid: BlockGrid | None

    @property
    def num_groups(self) -> int: ...
    @property
    def groups(self) -> Sequence[np.ndarray]: ...


@dataclass(frozen=True)
class Segments:
    """Token i of segment n sees token j iff j is in that segment and -left <= j - i <= right."""

    bounds: np.ndarray  # int64 (n + 1): segment n is tokens bounds[n]..bounds[n + 1]
    window: tuple[int, int]  # (left, right), FlashAttention's convention: -1 for no bound


def diagonal_segments(mask: Bands) -> Segments | None:
    """The fewest segments that are this mask, in every head group; None if there are none.

    A bound that binds in no segment is given as -1. O(bands · log bands), however the mask is cut into bands.
    """
    if mask.seqlen_q != mask.seqlen_k:
        return None
    if mask.grid is not None and any((mask.grid.row_runs(group) != 1).any() for group in range(mask.num_groups)):
        return None  # a row of a segment is one run: this spares most grids the making of bands
    found = None
    for bands in mask.groups:
        segments = _segments(bands, mask.seqlen_q)
        if segments is None or (found is not None and not _same(found, segments)):
            return None
        found = segments
    return found


def _segments(bands: np.ndarray, seqlen: int) -> Segments | None:
    if len(bands) == 0:
        return None
    bounds = _finest(bands, seqlen)
    length = np.diff(bounds)
    if seqlen > 1 and len(length) == seqlen:  # each token sees itself alone: one segment does for all
        return Segments(np.array([0, seqlen]), (0, 0)) if band.areas(bands).sum() == seqlen else None
    bands = _split_diagonals(bands, bounds)
    owner = np.searchsorted(bounds, bands[:, Q0], side="right") - 1
    lowest, highest = np.full(len(length), INF), np.full(len(length), -INF)
    np.minimum.at(lowest, owner, np.maximum(bands[:, LO], bands[:, K0] - (bands[:, Q1] - 1)))
    np.maximum.at(highest, owner, np.minimum(bands[:, HI], bands[:, K1] - 1 - bands[:, Q0]))
    left, right = shared_bound(-lowest, length), shared_bound(highest, length)
    if left is None or right is None:
        return None
    # no band sees more than that window in its segment, so all of it is seen if there are as many pairs
    beyond = [np.maximum(length - 1 - bound, 0) for bound in (left, right) if bound >= 0]
    whole = int((length * length).sum()) - sum(int((rows * (rows + 1) // 2).sum()) for rows in beyond)
    return Segments(bounds, (left, right)) if int(band.areas(bands).sum()) == whole else None


def _finest(bands: np.ndarray, seqlen: int) -> np.ndarray:
    """Bounds of the smallest diagonal squares that hold all pairs: a bound t has no pair with one token on each side.

    The bounds that the upper (j > i) or the lower part of one band rules out are one run each.
    """
    q0, q1, k0, k1, lo, hi = bands.T
    upper = np.stack([q0 + 1, np.where(hi > 0, np.minimum(k1, q1 + hi), 0)])
    lower = np.stack([np.maximum(k0, q0 + lo) + 1, np.where(lo < 0, q1, 0)])
    begin, end = np.concatenate([upper, lower], axis=1)
    begin, end = begin[begin < end], end[begin < end]
    order = np.argsort(begin)
    reached = np.maximum.accumulate(np.append(0, end[order]))
    return spread(reached, np.append(begin[order], seqlen + 1))[1]  # the gaps between the runs


def _split_diagonals(bands: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """The same pairs, each band in one segment: only a band that is no more than a diagonal can lie in several."""
    diagonal = (bands[:, LO] == 0) & (bands[:, HI] == 0)
    if not diagonal.any():
        return bands
    begin, end = bands[diagonal, Q0], bands[diagonal, Q1]
    owner, segment = spread(np.searchsorted(bounds, begin, side="right") - 1, np.searchsorted(bounds, end))
    begin, end = np.maximum(begin[owner], bounds[segment]), np.minimum(end[owner], bounds[segment + 1])
    return np.concatenate([bands[~diagonal], band.make(begin, end, begin, end, 0, 0)])


def shared_bound(reach: np.ndarray, length: np.ndarray) -> int | None:
    """The bound under which each segment reaches as far as it does: -1 if none binds, None if they disagree."""
    if (reach < 0).any():
        return None
    binding = reach < length - 1
    if not binding.any():
        return -1
    bound = int(reach[binding][0])
    agrees = (reach[binding] == bound).all() and (length[~binding] - 1 <= bound).all()
    return bound if agrees else None


def _same(one: Segments, other: Segments) -> bool:
    return one.window == other.window and np.array_equal(one.bounds, other.bounds)
