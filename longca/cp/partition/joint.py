"""Partitions of one mask on several chunked shardings, counted in one pass: most of the time of a small
partition is that of starting NumPy's operations.

The shardings lie one behind the other on an axis of tokens, with a gap of one token between them, which no
rank has and no band sees:

    token                0 1 2 3 4 5   6   7 8 9 …
    sharding             0 0 0 0 0 0  gap  1 1 1 …
    column: its rank     0 0 0 1 1 1       0 1 0 …
    row                  0 0 0 1 1 1       2 3 2 …     of P · sharding + rank

Shapes: J shardings, P ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from longca.cp.partition.mask_partition import ChunkedPartition, MaskPartition, tagged_bands
from longca.cp.partition.pieces import BandPieces
from longca.cp.partition.sharding import ChunkedSharding
from longca.masks import Mask
from longca.masks.band import K0, K1, Q0, Q1

MOST_RANKS = 16  # with more, counting takes longer than starting the operations


class JointSharding(ChunkedSharding):
    """Several chunked shardings of as many tokens and ranks, as one with J · P rows and P columns."""

    def __init__(self, shardings: Sequence[ChunkedSharding]) -> None:
        first = shardings[0]
        self.name = " + ".join(sharding.name for sharding in shardings)
        self.seqlen = first.seqlen
        self.world = first.world
        self.num_rows = len(shardings) * self.world
        self.starts = np.arange(len(shardings)) * (self.seqlen + 1)
        """the first token of each sharding, (J,)"""
        self.edges = np.concatenate(
            [start + sharding.edges for start, sharding in zip(self.starts, shardings, strict=True)]
            + [self.starts[-1:] + self.seqlen + 1]
        )
        # a gap is a chunk, with all tokens of its sharding before it; it has no tokens, so any owner will do
        gap = np.zeros(1, dtype=np.int64)
        self.owner = np.concatenate([part for sharding in shardings for part in (sharding.owner, gap)])
        number = np.repeat(np.arange(len(shardings)), [len(sharding.edges) for sharding in shardings])
        self.row = self.owner + number * self.world
        self._before_edges = np.concatenate([sharding._before_edges for sharding in shardings])
        self._before_edges = np.concatenate([self._before_edges, self._before_edges[-1:]])


def partition_jointly(mask: Mask, shardings: Sequence[ChunkedSharding]) -> list[ChunkedPartition]:
    """The partitions of a band mask on shardings of as many ranks, with their counts. All else is derived on
    demand."""
    partitions = [ChunkedPartition(mask, sharding) for sharding in shardings]
    if len(shardings) < 2 or shardings[0].world > MOST_RANKS:
        return partitions
    joint = JointSharding(shardings)
    bands, group = tagged_bands(mask)
    apart = np.repeat(joint.starts, len(bands))[:, None]
    bands = np.tile(bands, (len(shardings), 1))
    bands[:, [Q0, Q1, K0, K1]] += apart
    pieces = BandPieces(bands, np.tile(group, len(shardings)), joint)
    areas = pieces.areas
    needed = pieces.needed_keys
    sees = areas > 0
    start, end = joint.hulls(needed)
    counts = (
        areas,
        pieces.band_rows,
        np.where(sees, joint.count_in(needed), 0),
        np.where(sees, start, joint.seqlen),
        np.where(sees, end, 0),
    )
    world = joint.world
    for number, partition in enumerate(partitions):
        partition.set_counts(*(table[number * world : (number + 1) * world] for table in counts))
    return partitions


class PartitionStack:
    """Partitions of one mask on shardings of as many ranks, with the counts of all in one array each,
    (J, P, P) by (sharding, rank, owner)."""

    def __init__(self, partitions: Sequence[MaskPartition]) -> None:
        self.partitions = tuple(partitions)
        self.world = self.partitions[0].sharding.world

    def _stacked(self, name: str) -> np.ndarray:
        return np.stack([getattr(partition, name) for partition in self.partitions])

    @cached_property
    def areas(self) -> np.ndarray:
        """`MaskPartition.areas`."""
        return self._stacked("areas")

    @cached_property
    def band_rows(self) -> np.ndarray:
        """`MaskPartition.band_rows`."""
        return self._stacked("band_rows")

    @cached_property
    def needed_hulls(self) -> tuple[np.ndarray, np.ndarray]:
        """`MaskPartition.needed_hulls`."""
        hulls = self._stacked("needed_hulls")
        return hulls[:, 0], hulls[:, 1]

    @cached_property
    def remote_needed(self) -> tuple[np.ndarray, np.ndarray]:
        """`MaskPartition.num_needed` from other ranks (0 for the rank itself), and the index of rank s among
        the ranks whose keys rank r needs.

        The order is that of a ring: the predecessor of r comes first. Indices of unneeded ranks are
        undefined.
        """
        if self.world == 1:
            nothing = np.zeros((len(self.partitions), 1, 1), dtype=np.int64)
            return nothing, nothing
        needed = self._stacked("num_needed")
        ranks = np.arange(self.world)
        needed[:, ranks, ranks] = 0
        # (rank, distance) → owner; of a rank and an owner, their distance too
        nearest = ranks[:, None], (ranks[:, None] - ranks) % self.world
        before = np.cumsum((needed > 0)[:, *nearest], axis=2) - 1
        return needed, before[:, *nearest]
