"""Traits of a mask: scalars that kernels and strategies query. They are derived from the bands, never
declared. Some masks are segments, diagonal squares under one window: the format of kernels for packed
documents (varlen)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from longca.masks import band
from longca.masks.band import HI, INF, K0, K1, LO, Q0, Q1, spread, transpose
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


def tail_window(mask: Bands) -> tuple[int, int] | None:
    """The window (left, right) under which all queries, the last of more tokens, see the keys of all tokens;
    -1 for no bound. None if there is no such window, or there are not more keys than queries.

    Query i is token i + keys - queries, as FlashAttention aligns a window at the bottom right.
    """
    ahead = mask.seqlen_k - mask.seqlen_q
    if ahead <= 0 or mask.grid is not None or mask.num_groups > 1 or len(mask.groups[0]) != 1:
        return None
    [bands] = mask.groups
    lo, hi = int(bands[0, LO]), int(bands[0, HI])
    if not lo <= ahead <= hi:
        return None
    left = ahead - lo if lo > -INF else -1
    right = hi - ahead if hi < INF else -1
    whole = band.make(0, mask.seqlen_q, 0, mask.seqlen_k, lo, hi)
    return (left, right) if np.array_equal(whole, bands) else None


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


def _same(one: Segments, other: Segments) -> bool:
    return one.window == other.window and np.array_equal(one.bounds, other.bounds)


@dataclass(frozen=True)
class Traits:
    """Only scalars, so that `supports` is pure and fast."""

    seqlen_q: int
    seqlen_k: int
    num_groups: int  # head groups with masks of their own; 1: all heads share one
    num_bands: int  # over all groups
    area: int  # visible pairs, over all groups
    full: bool  # every pair is visible
    causal: bool  # j <= i over one square
    # smallest number of diagonal squares over all tokens under one window; 0 if the mask is none
    num_segments: int
    # that window: j - i in [-left, right]; -1 for no bound (FlashAttention's convention)
    window: tuple[int, int] | None
    block_size: tuple[int, int] | None  # of a uniform block grid
    is_block_grid: bool  # made of blocks, uniform or variable
    empty_rows: bool  # some query sees no key
    max_row_intervals: int  # largest number of runs of visible keys in one row, with adjacent runs joined
    max_col_intervals: int  # largest number of runs of queries that see one key
    # of fewer queries than keys: the window of all queries, aligned at the bottom right; see `tail_window`
    tail_window: tuple[int, int] | None = None

    @property
    def per_head(self) -> bool:
        return self.num_groups > 1


def derive(mask: Bands, area: int) -> Traits:
    """The traits that hold in every head group, from areas and coverage: independent of the division into
    bands.

    Args:
        area: visible pairs, over all groups.
    """
    if (
        area == mask.num_groups * mask.seqlen_q * mask.seqlen_k
        and mask.grid is None
        and area > mask.num_groups
    ):
        return _of_full(mask, area)
    num_bands, empty_rows, row_runs, col_runs = (
        _grid_runs(mask.grid) if mask.grid is not None else _band_runs(mask)
    )
    square = mask.seqlen_q == mask.seqlen_k
    segments = diagonal_segments(mask)
    triangle = mask.num_groups * mask.seqlen_q * (mask.seqlen_q + 1) // 2
    return Traits(
        seqlen_q=mask.seqlen_q,
        seqlen_k=mask.seqlen_k,
        num_groups=mask.num_groups,
        num_bands=num_bands,
        area=area,
        full=area == mask.num_groups * mask.seqlen_q * mask.seqlen_k,
        causal=square and area == triangle and not _looks_ahead(mask),
        num_segments=len(segments.bounds) - 1 if segments else 0,
        window=segments.window if segments else None,
        block_size=mask.grid.block_size if mask.grid is not None else None,
        is_block_grid=mask.grid is not None,
        empty_rows=empty_rows,
        max_row_intervals=row_runs,
        max_col_intervals=col_runs,
        tail_window=tail_window(mask),
    )


def _of_full(mask: Bands, area: int) -> Traits:
    """The traits of a full rectangle of more than one pair: most steps of a ring have such a mask."""
    square = mask.seqlen_q == mask.seqlen_k
    return Traits(
        mask.seqlen_q,
        mask.seqlen_k,
        mask.num_groups,
        num_bands=sum(map(len, mask.groups)),
        area=area,
        full=True,
        causal=False,
        num_segments=int(square),
        window=(-1, -1) if square else None,
        block_size=None,
        is_block_grid=False,
        empty_rows=False,
        max_row_intervals=1,
        max_col_intervals=1,
        tail_window=(-1, -1) if mask.seqlen_q < mask.seqlen_k and mask.num_groups == 1 else None,
    )


def _looks_ahead(mask: Bands) -> bool:
    """True if some query sees a later key. The last key of a band in normal form is at its upper offset."""
    return any((np.minimum(bands[:, HI], bands[:, K1] - 1 - bands[:, Q0]) > 0).any() for bands in mask.groups)


def _band_runs(mask: Bands) -> tuple[int, bool, int, int]:
    """(number of bands, whether a row is empty, most runs in a row, most runs in a column) over all
    groups."""
    groups = mask.groups
    return (
        sum(len(bands) for bands in groups),
        any(not all_rows_see(bands, mask.seqlen_q) for bands in groups),
        max(most_row_runs(bands) for bands in groups),
        max(most_col_runs(bands) for bands in groups),
    )


def _grid_runs(grid: BlockGrid) -> tuple[int, bool, int, int]:
    """The same as `_band_runs`, without computing the bands."""
    rows = [grid.row_runs(group) for group in range(grid.num_groups)]
    cols = [grid.col_runs(group) for group in range(grid.num_groups)]
    return (
        sum(int(runs.sum()) for runs in rows),
        any(bool((runs == 0).any()) for runs in rows),
        max(int(runs.max(initial=0)) for runs in rows),
        max(int(runs.max(initial=0)) for runs in cols),
    )


def most_row_runs(bands: np.ndarray) -> int:
    """Largest number of runs of visible keys in one row, with adjacent runs joined; for disjoint bands in
    normal form, (n, 6).

    It is one if no two bands share a row. Otherwise few rows are checked. Stretches are divided at rows where
    a band begins or ends, or one of its ends starts or stops moving. Within a stretch each end is fixed or
    moves by one per row. Two runs are then adjacent in all rows of a stretch, in none, or in its first or
    last row. So the first two rows of a stretch contain its maximum: the second row has no such adjacency, or
    there is no third row.
    """
    if len(bands) == 0:
        return 0
    q0, q1, k0, k1, lo, hi = bands.T
    order = np.argsort(q0)
    if (q0[order[1:]] >= q1[order[:-1]]).all():
        return 1
    # bounds of the rows in which an end moves
    starts, ends = (np.minimum(np.maximum(row, q0), q1) for row in (k0 - lo, k1 - hi))
    turns = np.concatenate([q0, q1, starts, ends])
    rows = np.unique(np.concatenate([turns, turns + 1]))
    owner, number = spread(np.searchsorted(rows, q0), np.searchsorted(rows, q1))
    row = rows[number]
    begin = np.maximum(k0[owner], row + lo[owner])
    end = np.minimum(k1[owner], row + hi[owner] + 1)
    order = np.lexsort([begin, number])
    number = number[order]
    begin = begin[order]
    end = end[order]
    joins = (number[1:] == number[:-1]) & (begin[1:] == end[:-1])
    runs = np.bincount(number) - np.bincount(number[1:][joins], minlength=number.max() + 1)
    return int(runs.max())


def most_col_runs(bands: np.ndarray) -> int:
    """Largest number of runs of rows that see one column, with adjacent runs joined."""
    return most_row_runs(transpose(bands))


def all_rows_see(bands: np.ndarray, seqlen_q: int) -> bool:
    """True if every query sees a key. In normal form each row of a band sees one."""
    begin, end = bands[np.argsort(bands[:, Q0], kind="stable")][:, [Q0, Q1]].T
    reached = np.concatenate([[0], np.maximum.accumulate(end)])
    return bool((begin <= reached[:-1]).all() and reached[-1] >= seqlen_q)
