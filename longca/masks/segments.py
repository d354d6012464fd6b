"""Masks of diagonal squares under one window, the format of kernels for packed documents (varlen)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from longca.masks import band
from longca.masks.band import HI, INF, K0, K1, LO, Q0, Q1, spread
from longca.masks.grid import BlockGrid


class Bands(Protocol):
    """The part of a `Mask` from which traits and segments are derived. `Mask` imports this module, so it
    cannot import `Mask`."""

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
    """The smallest number of segments that represents this mask, in every head group; None if there is no
    such representation.

    A window bound without effect in all segments is -1. O(bands · log bands), for any division of the mask
    into bands.
    """
    if mask.seqlen_q != mask.seqlen_k:
        return None
    if mask.grid is not None and any(
        (mask.grid.row_runs(group) != 1).any() for group in range(mask.num_groups)
    ):
        return None  # a row of a segment is one run: most grids are rejected here without computing bands
    common = None
    for bands in mask.groups:
        segments = _segments(bands, mask.seqlen_q)
        if segments is None or (common is not None and not _same(common, segments)):
            return None
        common = segments
    return common


def _segments(bands: np.ndarray, seqlen: int) -> Segments | None:
    if len(bands) == 0:
        return None
    bounds = _finest(bands, seqlen)
    length = np.diff(bounds)
    if seqlen > 1 and len(length) == seqlen:  # each token sees only itself: one segment is enough
        return Segments(np.array([0, seqlen]), (0, 0)) if band.areas(bands).sum() == seqlen else None
    bands = _split_diagonals(bands, bounds)
    owner = np.searchsorted(bounds, bands[:, Q0], side="right") - 1
    lowest = np.full(len(length), INF)
    highest = np.full(len(length), -INF)
    np.minimum.at(lowest, owner, np.maximum(bands[:, LO], bands[:, K0] - (bands[:, Q1] - 1)))
    np.maximum.at(highest, owner, np.minimum(bands[:, HI], bands[:, K1] - 1 - bands[:, Q0]))
    left = shared_bound(-lowest, length)
    right = shared_bound(highest, length)
    if left is None or right is None:
        return None
    # bands see at most that window in their segment, so the window is complete if the numbers of pairs are
    # equal
    beyond = [np.maximum(length - 1 - bound, 0) for bound in (left, right) if bound >= 0]
    whole = int((length * length).sum()) - sum(int((rows * (rows + 1) // 2).sum()) for rows in beyond)
    return Segments(bounds, (left, right)) if int(band.areas(bands).sum()) == whole else None


def _finest(bands: np.ndarray, seqlen: int) -> np.ndarray:
    """Bounds of the smallest diagonal squares that hold all pairs: no pair crosses a bound t.

    The upper (j > i) and the lower part of a band exclude one run of bounds each.
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
    """The same pairs, with each band in one segment: only a single diagonal can extend over several."""
    diagonal = (bands[:, LO] == 0) & (bands[:, HI] == 0)
    if not diagonal.any():
        return bands
    begin = bands[diagonal, Q0]
    end = bands[diagonal, Q1]
    owner, segment = spread(np.searchsorted(bounds, begin, side="right") - 1, np.searchsorted(bounds, end))
    begin = np.maximum(begin[owner], bounds[segment])
    end = np.minimum(end[owner], bounds[segment + 1])
    return np.concatenate([bands[~diagonal], band.make(begin, end, begin, end, 0, 0)])


def shared_bound(reach: np.ndarray, length: np.ndarray) -> int | None:
    """The window bound that explains the extent of each segment: -1 without a bound, None if segments
    disagree."""
    if (reach < 0).any():
        return None
    binding = reach < length - 1
    if not binding.any():
        return -1
    bound = int(reach[binding][0])
    agrees = (reach[binding] == bound).all() and (length[~binding] - 1 <= bound).all()
    return bound if agrees else None


def _same(segments: Segments, other: Segments) -> bool:
    return segments.window == other.window and np.array_equal(segments.bounds, other.bounds)
