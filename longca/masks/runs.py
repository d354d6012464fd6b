"""How many separate runs of keys a row sees, and of rows a column."""

import numpy as np

from longca.masks.band import Q0, Q1, transpose
from longca.masks.ragged import spread


def most_row_runs(bands: np.ndarray) -> int:
    """Most runs of visible keys in one row, touching ones joined; for disjoint bands in normal form, (n, 6).

    Looks at few rows: between two rows where a band begins, ends, or one of its ends starts or stops moving, all ends
    are fixed or move by one a row. Two runs then touch in all rows of such a stretch, in none, or in its first or last
    one, so that its first two rows show its most runs: the second is free of such a touch, or there is no third.
    """
    if len(bands) == 0:
        return 0
    q0, q1, k0, k1, lo, hi = bands.T
    turns = np.concatenate([q0, q1, np.clip(k0 - lo, q0, q1), np.clip(k1 - hi, q0, q1)])
    rows = np.unique(np.concatenate([turns, turns + 1]))
    owner, number = spread(np.searchsorted(rows, q0), np.searchsorted(rows, q1))
    row = rows[number]
    begin = np.maximum(k0[owner], row + lo[owner])
    behind = np.minimum(k1[owner], row + hi[owner] + 1)
    order = np.lexsort([begin, number])
    number, begin, behind = number[order], begin[order], behind[order]
    joins = (number[1:] == number[:-1]) & (begin[1:] == behind[:-1])
    runs = np.bincount(number) - np.bincount(number[1:][joins], minlength=number.max() + 1)
    return int(runs.max())


def most_col_runs(bands: np.ndarray) -> int:
    """Most runs of rows that see one column, touching ones joined."""
    return most_row_runs(transpose(bands))


def all_rows_see(bands: np.ndarray, seqlen_q: int) -> bool:
    """Does every query see a key? In normal form each row of a band does."""
    begin, end = bands[np.argsort(bands[:, Q0], kind="stable")][:, [Q0, Q1]].T
    reached = np.concatenate([[0], np.maximum.accumulate(end)])
    return bool((begin <= reached[:-1]).all() and reached[-1] >= seqlen_q)
