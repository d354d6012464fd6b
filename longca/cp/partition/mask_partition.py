"""A mask cut by a placement: what the queries of each rank see of the keys of each rank.

All pairs of ranks are counted at once, in closed form; the masks of single pairs are made when they are asked for.
Shapes: P ranks, G head groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from longca.cp.partition.sharding import ChunkedSharding, Sharding, StripedSharding, TokenRanges
from longca.masks.band import HI, INF, K0, K1, LO, Q0, Q1, normal
from longca.masks.mask import Mask

if TYPE_CHECKING:
    KeyRange = tuple[int, int, int]  # rank that holds the keys; first and behind the last of them, as indices into what it holds


class MaskPartition:
    """One mask on one placement. Areas and counts are sums over head groups."""

    def __init__(self, mask: Mask, placement: Sharding) -> None:
        self.mask, self.placement = mask, placement

    @cached_property
    def areas(self) -> np.ndarray:
        """Visible pairs of the queries of rank r and the keys of rank s, (P, P) int64 by (r, s)."""
        raise NotImplementedError

    @cached_property
    def meetings(self) -> np.ndarray:
        """Rows of bands, each counted once for every rank that it sees keys of, (P, P) int64 by (r, s): how many ends of rows a
        kernel has to look at. For stripes an upper bound, evenly over s.
        """
        raise NotImplementedError

    @cached_property
    def needs(self) -> TokenRanges:
        """Keys that some query of a rank sees. For stripes with the gaps that its P-th rows leave in windows narrower than P."""
        raise NotImplementedError

    def local(self, rank: int, keys: Sequence[KeyRange]) -> Mask:
        """What the queries of a rank see of these keys, one range after the other, in local coordinates of both.

        No two ranges may be of the same keys, and all that the rank sees of a range's owner must be in ranges or in none,
        each band of it in one: whole ranks, hulls and the ranges of `TokenRanges` are like that.
        """
        raise NotImplementedError

    def _of_bands(self, rank: int, keys: Sequence[KeyRange], groups: list[np.ndarray]) -> Mask:
        num_keys = sum(behind - first for _, first, behind in keys)
        return Mask(int(self.placement.num_tokens[rank]), num_keys, tuple(groups), name=self.mask.name)


def partition_mask(mask: Mask, placement: Sharding) -> MaskPartition:
    """Raises ValueError where the mask is not of the placement's tokens on both sides."""
    from longca.cp.partition.blocks import BlockPartition
    from longca.cp.partition.chunks import ChunkedPartition
    from longca.cp.partition.stripes import StripedPartition

    if (mask.seqlen_q, mask.seqlen_k) != (placement.seqlen, placement.seqlen):
        raise ValueError(f"a placement of {placement.seqlen} tokens cannot cut {mask}")
    if mask.grid is not None:
        return BlockPartition(mask, placement)
    if isinstance(placement, StripedSharding):
        return StripedPartition(mask, placement)
    assert isinstance(placement, ChunkedSharding)
    return ChunkedPartition(mask, placement)


def tagged(mask: Mask) -> tuple[np.ndarray, np.ndarray]:
    """The bands of all head groups (n, 6), and the group of each (n,)."""
    groups = list(mask.groups)
    return np.concatenate(groups), np.repeat(np.arange(len(groups)), [len(group) for group in groups])


class KeyBuffer:
    """Where the keys of a step lie: its ranges, one after the other."""

    def __init__(self, keys: Sequence[KeyRange]) -> None:
        table = np.array(keys, dtype=np.int64).reshape(-1, 3)
        order = np.lexsort([table[:, 1], table[:, 0]])
        start = np.cumsum(table[:, 2] - table[:, 1]) - (table[:, 2] - table[:, 1])
        self.owner, self._first = table[order, 0], table[order, 1]
        self._start = start[order]

    @property
    def sources(self) -> np.ndarray:
        """Ranks whose keys are in it."""
        return np.unique(self.owner)

    def place(self, bands: np.ndarray, source: np.ndarray | int) -> np.ndarray:
        """Normal bands over what `source` holds (a rank, or one for each band), as bands over the buffer."""
        apart = INF  # one axis for all ranks
        at = np.searchsorted(self.owner * apart + self._first, source * apart + bands[:, K0], side="right") - 1
        return moved(bands, 0, self._start[at] - self._first[at])


def moved(bands: np.ndarray, dq: np.ndarray | int, dk: np.ndarray | int) -> np.ndarray:
    """Each band moved by its own number of rows and columns."""
    b = bands.copy()
    b[:, Q0] += dq
    b[:, Q1] += dq
    b[:, K0] += dk
    b[:, K1] += dk
    for column in (LO, HI):
        b[:, column] = np.where(np.abs(bands[:, column]) < INF, bands[:, column] + dk - dq, bands[:, column])
    return b


def joined(bands: np.ndarray) -> np.ndarray:
    """The same pairs in normal form; rectangles of the same columns that touch are one."""
    b = normal(bands)
    full = (b[:, LO] == -INF) & (b[:, HI] == INF)
    if full.sum() < 2:
        return b
    whole = b[full]
    whole = whole[np.lexsort([whole[:, Q0], whole[:, K1], whole[:, K0]])]
    goes_on = (whole[1:, Q0] == whole[:-1, Q1]) & (whole[1:, K0] == whole[:-1, K0]) & (whole[1:, K1] == whole[:-1, K1])
    if not goes_on.any():
        return b
    starts = np.flatnonzero(np.append(True, ~goes_on))
    tall = whole[starts]
    tall[:, Q1] = whole[np.append(starts[1:], len(whole)) - 1, Q1]
    return normal(np.concatenate([b[~full], tall]))
