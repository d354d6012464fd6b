"""Mask partitions: one mask on one sharding, seen as P × P pairs of (queries of a rank, keys of a
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
sub-class for each kind of mask and sharding (`longca.cp.schedule.planner.partition_mask` selects it): for
chunks that of `chunked_partition.py`, for blocks that of `blocks.py`, and for stripes that of this file.

**Stripes.** Rows r, r + P, … and keys s, s + P, … of a band form a band again. All pairs of ranks are counted
at once. The number of keys of rank s below a column x is x // P, plus one if x mod P > s. Along the rows of
one rank the end of a row is fixed or moves by P, so x mod P is constant: a sum over rows is a constant plus a
step function of s.

**Limits.** Blocks are counted one by one, so masks of very many are refused before they are planned or
predicted.

Shapes: P ranks, G head groups of the mask; J partitions of a stack.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from longca.core import UserError, format_length
from longca.cp.partition.sharding import Sharding, StripedSharding, TokenRanges
from longca.masks import Mask
from longca.masks.band import HI, INF, K0, LO, Q0, Q1, join_rectangles, make, shift, tight

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
    def needed_hulls(self) -> tuple[np.ndarray, np.ndarray]:
        """(start, end) of these keys as local indices of s, from the first to the last, (P, P) each; start >
        end for none."""
        start, end = self.sharding.hulls(self.needed_keys)
        return np.where(self.areas > 0, start, self.sharding.seqlen), np.where(self.areas > 0, end, 0)

    def set_counts(
        self, areas: np.ndarray, band_rows: np.ndarray, num_needed: np.ndarray, *needed_hulls: np.ndarray
    ) -> None:
        """Gives the counts of these names, where they are known before."""
        self.areas = areas
        self.band_rows = band_rows
        self.num_needed = num_needed
        self.needed_hulls = needed_hulls[0], needed_hulls[1]

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

    @cached_property
    def owners(self) -> np.ndarray:
        """The ranks of its keys, ascending."""
        return self._owner[np.diff(self._owner, prepend=-1) > 0]

    def place(self, bands: np.ndarray, owner: np.ndarray | int) -> np.ndarray:
        """Moves normal bands over the local indices of `owner` (a rank, or one for each band) to columns of
        the layout."""
        apart = INF  # one axis for all ranks
        at = (
            np.searchsorted(self._owner * apart + self._start, owner * apart + bands[:, K0], side="right") - 1
        )
        return shift(bands, 0, self._column[at] - self._start[at])


@dataclass(frozen=True)
class Step:
    """One kernel call: all queries of a rank and some KV."""

    partition: MaskPartition
    rank: int
    number: int
    keys: tuple[KvRange, ...]
    """(owner, start, end) of each range, in the order of the call"""
    area: int
    """visible pairs, over all head groups"""

    @cached_property
    def mask(self) -> Mask:
        """The call's mask in local indices: queries in the order of the rank, keys in the order of `keys`."""
        if self.is_full:
            whole = self.partition.mask
            every = make(0, self.num_rows, 0, self.num_keys)
            return Mask(self.num_rows, self.num_keys, (every,) * whole.num_groups, name=whole.name)
        return self.partition.local_mask(self.rank, self.keys)

    @property
    def is_full(self) -> bool:
        """True for a full rectangle in bands, as in most steps of causal and full masks."""
        whole = self.partition.mask
        return whole.grid is None and self.area == whole.num_groups * self.num_rows * self.num_keys

    @property
    def num_rows(self) -> int:
        return int(self.partition.sharding.num_tokens[self.rank])

    @cached_property
    def num_keys(self) -> int:
        return sum(end - start for _, start, end in self.keys)


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


class StripedPartition(MaskPartition):
    """A band mask on a striped sharding."""

    sharding: StripedSharding

    def __init__(self, mask: Mask, sharding: StripedSharding) -> None:
        super().__init__(mask, sharding)
        self._bands, self._group = tagged_bands(mask)

    @cached_property
    def areas(self) -> np.ndarray:
        q0, q1, k0, k1, lo, hi = self._bands.T
        # rows in which row ends begin or stop moving
        falls = np.clip(k0 - lo, q0, q1)
        rises = np.clip(k1 - hi - 1, q0, q1)
        upper = self._sum_of_ends(q0, rises, hi + 1, True) + self._sum_of_ends(rises, q1, k1, False)
        return upper - self._sum_of_ends(q0, falls, k0, False) - self._sum_of_ends(falls, q1, lo, True)

    def _sum_of_ends(
        self, start: np.ndarray, end: np.ndarray, column: np.ndarray, moving: bool
    ) -> np.ndarray:
        """Sums, over rows start..end of each rank, the keys of s below a column, (P, P).

        Args:
            column: of each band; counted from the row if `moving`.
        """
        some = start < end
        start = start[some]
        end = end[some]
        column = column[some]
        before = self.sharding.num_before(start)
        num_rows = self.sharding.num_before(end) - before
        ranks = np.arange(self.sharding.world)
        limit = column[:, None] + ranks if moving else np.repeat(column[:, None], len(ranks), axis=1)
        rounds, rest = np.divmod(limit, self.sharding.world)
        rounds *= num_rows
        if moving:
            rounds += num_rows * before + num_rows * (num_rows - 1) // 2
        return self.sharding.sum_before(
            np.tile(ranks, len(start)), rounds.ravel(), rest.ravel(), num_rows.ravel()
        )

    @cached_property
    def _rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(rank, number of rows, start and end of the keys that they see), for each rank and band with rows
        of that rank."""
        world = self.sharding.world
        q0, q1, k0, k1, lo, hi = self._bands.T
        before = self.sharding.num_before(q0)
        num_rows = (self.sharding.num_before(q1) - before).T
        rank, band = np.nonzero(num_rows)
        num_rows = num_rows[rank, band]
        row = rank + world * before[band, rank]
        start = np.maximum(k0[band], row + lo[band])
        return rank, num_rows, start, np.minimum(k1[band], row + world * (num_rows - 1) + hi[band] + 1)

    @cached_property
    def band_rows(self) -> np.ndarray:
        world = self.sharding.world
        rank, num_rows, start, end = self._rows
        total = np.bincount(rank, num_rows * np.minimum(end - start, world), world).astype(np.int64)
        return np.repeat(-(-total // world)[:, None], world, axis=1)

    @cached_property
    def needed_keys(self) -> TokenRanges:
        rank, _, start, end = self._rows
        return TokenRanges.union(rank, start, end, self.sharding.seqlen)

    def local_mask(self, rank: int, keys: Sequence[KvRange]) -> Mask:
        layout = KvLayout(keys)
        world = self.sharding.world
        owner, band = (
            index.ravel() for index in np.meshgrid(layout.owners, np.arange(len(self._bands)), indexing="ij")
        )
        b = self._bands[band]
        offset = owner - rank
        b[:, [Q0, Q1]] = -((rank - b[:, [Q0, Q1]]) // world)
        b[:, 2:4] = -((owner[:, None] - b[:, 2:4]) // world)
        low = np.abs(b[:, LO]) < INF
        high = np.abs(b[:, HI]) < INF
        b[low, LO] = -((offset[low] - b[low, LO]) // world)
        b[high, HI] = (b[high, HI] - offset[high]) // world
        b, kept = tight(b)
        b = layout.place(b, owner[kept])
        group = self._group[band[kept]]
        return self._mask_of_bands(
            rank, keys, [join_rectangles(b[group == number]) for number in range(self.mask.num_groups)]
        )


MOST_BLOCKS = 40_000_000  # of all head groups, on several GPUs: 128K tokens in blocks of 64, for 8 KV heads
MOST_BLOCKS_ALONE = 150_000_000  # on one GPU, where nothing is planned: 256K tokens of the same
ALIKE_BLOCKS = 100_000  # from which on the draws of a random block mask are alike


def check_blocks(name: str, params: Mapping[str, Any], seqlen: int, num_kv_heads: int, gpus: int) -> None:
    """Refuses a mask of too many blocks before it is built.

    Args:
        params: of the pattern; those with blocks have `block` or `mean_block`.

    Raises:
        UserError: it would have more than can be counted in a minute or so.
    """
    block = params.get("block", params.get("mean_block"))
    if isinstance(block, int) and block > 0:
        _check(name, (-(-seqlen // block)) ** 2 * num_kv_heads, seqlen, gpus)


def check_grid(mask: Mask, gpus: int) -> None:
    """The same for a mask that is built already."""
    if mask.grid is not None:
        _check(mask.name or "of blocks", mask.grid.visible.size, mask.seqlen_q, gpus)


def draws_alike(mask: Mask) -> bool:
    """True for random blocks of such a number that other draws have the same time."""
    return mask.grid is not None and mask.grid.visible.size >= ALIKE_BLOCKS


def _check(name: str, num_blocks: int, seqlen: int, gpus: int) -> None:
    most = MOST_BLOCKS if gpus > 1 else MOST_BLOCKS_ALONE
    if num_blocks > most:
        raise UserError(
            f"Mask '{name}' of {format_length(seqlen)} tokens has {num_blocks:,} blocks, too many to predict",
            why=(
                f"{'plans on several GPUs are' if gpus > 1 else 'tiles are'} counted block by block, at most "
                f"{most:,}"
            ),
            todo="Take fewer tokens, or larger blocks such as block=1024",
        )
