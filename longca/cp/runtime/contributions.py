"""Which rows of a rank each of its steps is for, where a kernel merges as it stores: who begins a row has nothing to read, and who ends it
writes the result. So rows of one step alone cost what they cost without steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np

from longca.kernels.contribution import UNIT_ROWS, Contribution
from longca.masks.band import Q0, Q1
from longca.masks.mask import Mask


@dataclass(frozen=True)
class Contributions:
    of_step: dict[int, tuple[Contribution, ...]]
    complete: bool
    """is every row of some step?"""
    shared: bool
    """are some of several?"""


def contributions_of(steps: Mapping[int, tuple[int, int, Mask]], num_rows: int) -> Contributions:
    """
    Args:
        steps: (first row, row behind the last, mask of these rows) of each, in order; bands begin at whole units, blocks have all rows.
    """
    seen = np.array([_seen(first, mask, num_rows) for first, _, mask in steps.values()]).reshape(len(steps), -(-num_rows // UNIT_ROWS))
    begins, ends = (np.cumsum(seen[::way], axis=0)[::way] == 1 for way in (1, -1))
    found = {}
    for place, (number, (first, behind, _)) in enumerate(steps.items()):
        kinds = {(begun, ended): seen[place] & (begins[place] == begun) & (ends[place] == ended)
                 for begun, ended in product((True, False), repeat=2)}
        found[number] = tuple(Contribution(begun, ended, _ranges(units, first, behind))
                              for (begun, ended), units in kinds.items() if units.any())
    return Contributions(found, bool(seen.any(axis=0).all()), bool((seen.sum(axis=0) > 1).any()))


def _seen(first: int, mask: Mask, num_rows: int) -> np.ndarray:
    """Which units have rows that the mask is about, (U,) bool. Lines of blocks are no units: all of theirs count."""
    count = np.zeros(-(-num_rows // UNIT_ROWS) + 1, dtype=np.int64)
    if mask.grid is not None:
        return count[1:] == 0
    bands = np.concatenate(mask.groups)
    np.add.at(count, (first + bands[:, Q0]) // UNIT_ROWS, 1)
    np.add.at(count, -(-(first + bands[:, Q1]) // UNIT_ROWS), -1)
    return np.cumsum(count)[:-1] > 0


def _ranges(units: np.ndarray, first: int, behind: int) -> tuple[tuple[int, int], ...] | None:
    """Rows counted from `first`; None for all up to `behind`."""
    edges = np.flatnonzero(np.diff(units.astype(np.int8), prepend=0, append=0)) * UNIT_ROWS
    found = tuple((int(begin) - first, min(int(end), behind) - first) for begin, end in edges.reshape(-1, 2))
    return None if found == ((0, behind - first),) else found
