"""Traits of a mask: scalars that kernels and strategies query. They are derived from the bands, never
declared."""

from dataclasses import dataclass

import numpy as np

from longca.masks.band import HI, K1, Q0, Q1, spread, transpose
from longca.masks.grid import BlockGrid
from longca.masks.segments import Bands, diagonal_segments


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
