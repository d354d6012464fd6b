"""The base of mask partitions: one mask on one sharding, seen as P × P pairs of (queries of a rank, keys of a
rank).

                 keys of rank   0        1        2
    queries of rank 0        ┌────────┬────────┬────────┐
                             │ (0, 0) │ (0, 1) │ (0, 2) │     `areas`: visible pairs in each field, (P, P)
                          1  ├────────┼────────┼────────┤     `local_mask`: the mask of some fields of a row,
                             │ (1, 0) │ (1, 1) │ (1, 2) │                   in local indices
                          2  ├────────┼────────┼────────┤
                             │ (2, 0) │ (2, 1) │ (2, 2) │
                             └────────┴────────┴────────┘

All fields are counted at once, in closed form. Masks of single fields are built on demand. There is one
sub-class for each kind of mask and sharding (`longca.cp.partition.factory` selects it):

    mask     sharding   class
    bands    chunked    ChunkedPartition (factory.py)
    bands    striped    StripedPartition (factory.py)
    blocks   any        BlockPartition (blocks.py)

Shapes: P ranks, G head groups of the mask.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from longca.cp.partition.sharding import Sharding, TokenRanges
from longca.masks import Mask
from longca.masks.band import HI, INF, K0, K1, LO, Q0, Q1

if TYPE_CHECKING:
    KvRange = tuple[int, int, int]
    """(owner, start, end): the keys start..end of rank `owner`, as local indices"""


class MaskPartition:
    """One mask on one sharding. Areas and counts are sums over the head groups of the mask."""

    def __init__(self, mask: Mask, sharding: Sharding) -> None:
        self.mask = mask
        self.sharding = sharding
        self.kept: dict[Hashable, Any] = {}
        """cache of objects that other modules derive from this partition, by their own keys"""

    @cached_property
    def areas(self) -> np.ndarray:
        """Visible pairs of the queries of rank r and the keys of rank s, (P, P) int64 by (r, s)."""
        raise NotImplementedError

    @cached_property
    def band_rows(self) -> np.ndarray:
        """Rows of bands of rank r that see some key of rank s, (P, P) int64 by (r, s).

        They measure the row ends that a kernel must mask, where whole tiles are computed. For stripes this is
        an upper bound, uniform over s.
        """
        raise NotImplementedError

    @cached_property
    def needed_keys(self) -> TokenRanges:
        """The visible keys of each rank.

        Stripes include the gaps of windows narrower than P between every P-th row.
        """
        raise NotImplementedError

    @cached_property
    def num_needed(self) -> np.ndarray:
        """The number of keys of rank s that some query of rank r sees, (P, P) int64 by (r, s)."""
        return np.where(self.areas > 0, self.sharding.count_in(self.needed_keys), 0)

    @cached_property
    def remote_needed(self) -> tuple[np.ndarray, np.ndarray]:
        """`num_needed` from other ranks (0 for the rank itself), and the index of rank s among the ranks
        whose keys rank r needs, (P, P) each.

        The order is that of a ring: the predecessor of r comes first. Indices of unneeded ranks are
        undefined.
        """
        needed = self.num_needed.copy()
        ranks = np.arange(self.sharding.world)
        np.fill_diagonal(needed, 0)
        # (rank, distance) → owner; of a rank and an owner, their distance too
        nearest = (ranks[:, None] - ranks) % self.sharding.world
        before = np.cumsum(np.take_along_axis(needed > 0, nearest, axis=1), axis=1) - 1
        return needed, np.take_along_axis(before, nearest, axis=1)

    @cached_property
    def needed_hulls(self) -> tuple[np.ndarray, np.ndarray]:
        """(start, end) of these keys as local indices of s, from the first to the last, (P, P) each; start >
        end for none."""
        start, end = self.sharding.hulls(self.needed_keys)
        return np.where(self.areas > 0, start, self.sharding.seqlen), np.where(self.areas > 0, end, 0)

    def local_mask(self, rank: int, keys: Sequence[KvRange]) -> Mask:
        """The mask of a rank's queries and these keys, both in local order, with concatenated key ranges.

        Ranges must be disjoint. For each owner, the ranges must cover all of its keys that the rank sees,
        with each band in one range. Whole ranks, hulls and the ranges of `TokenRanges` satisfy this.
        """
        raise NotImplementedError

    def _mask_of_bands(self, rank: int, keys: Sequence[KvRange], groups: list[np.ndarray]) -> Mask:
        num_keys = sum(end - start for _, start, end in keys)
        return Mask(int(self.sharding.num_tokens[rank]), num_keys, tuple(groups), name=self.mask.name)


def tagged_bands(mask: Mask) -> tuple[np.ndarray, np.ndarray]:
    """(bands of all head groups (n, 6), the group of each (n,))."""
    groups = list(mask.groups)
    return np.concatenate(groups), np.repeat(np.arange(len(groups)), [len(group) for group in groups])


class KvLayout:
    """The layout of one step's keys in a kernel call: the concatenated key ranges."""

    def __init__(self, keys: Sequence[KvRange]) -> None:
        table = np.array(keys, dtype=np.int64).reshape(-1, 3)
        order = np.lexsort([table[:, 1], table[:, 0]])
        column = np.cumsum(table[:, 2] - table[:, 1]) - (table[:, 2] - table[:, 1])
        self._owner = table[order, 0]
        self._start = table[order, 1]
        self._column = column[order]

    @property
    def owners(self) -> np.ndarray:
        """The ranks of its keys, ascending."""
        return np.unique(self._owner)

    def place(self, bands: np.ndarray, owner: np.ndarray | int) -> np.ndarray:
        """Moves normal bands over the local indices of `owner` (a rank, or one for each band) to columns of
        the layout."""
        apart = INF  # one axis for all ranks
        at = (
            np.searchsorted(self._owner * apart + self._start, owner * apart + bands[:, K0], side="right") - 1
        )
        return shift_bands(bands, 0, self._column[at] - self._start[at])


def shift_bands(bands: np.ndarray, dq: np.ndarray | int, dk: np.ndarray | int) -> np.ndarray:
    """Moves each band by its own number of rows (dq) and columns (dk)."""
    b = bands.copy()
    b[:, Q0] += dq
    b[:, Q1] += dq
    b[:, K0] += dk
    b[:, K1] += dk
    for column in (LO, HI):
        b[:, column] = np.where(np.abs(bands[:, column]) < INF, bands[:, column] + dk - dq, bands[:, column])
    return b


def join_rectangles(bands: np.ndarray) -> np.ndarray:
    """The same pairs, with adjacent full rectangles of the same columns merged. Takes and returns tight
    bands, unordered."""
    full = (bands[:, LO] == -INF) & (bands[:, HI] == INF)
    if full.sum() < 2:
        return bands
    whole = bands[full]
    whole = whole[np.lexsort([whole[:, Q0], whole[:, K1], whole[:, K0]])]
    goes_on = (
        (whole[1:, Q0] == whole[:-1, Q1])
        & (whole[1:, K0] == whole[:-1, K0])
        & (whole[1:, K1] == whole[:-1, K1])
    )
    if not goes_on.any():
        return bands
    starts = np.flatnonzero(np.append(True, ~goes_on))
    tall = whole[starts]
    tall[:, Q1] = whole[np.append(starts[1:], len(whole)) - 1, Q1]
    return np.concatenate([bands[~full], tall])
