"""Fixed parts of a sequence: they depend on its length alone, so that sums over parts have the same addends
and the same order for any number of ranks.

Part n of N holds chunks n and 2N − 1 − n of the sequence, so that parts have the same area under `causal`.
Each part is on one rank. Blocks of P consecutive parts are dealt one to each of P ranks, so in every round
each rank computes one part, and a sum in the order of parts proceeds round by round.

                             chunks of the sequence
    4 parts                  0  1  2  3  3  2  1  0
    2 ranks, round 0         0  1              1  0     parts 0 and 1, one on each rank
             round 1               2  3  3  2           parts 2 and 3

Shapes: N parts, P ranks, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise, product

import numpy as np

from longca.cp.partition.blocks import part_of_grid
from longca.cp.partition.sharding import ChunkedSharding, even_lengths
from longca.masks import Mask
from longca.masks.band import HI, K0, K1, LO, Q0, Q1, shift

FEWEST_PARTS = 12  # 1, 2, 3, 4, 6 and 12 ranks get equally many
MAX_TOKENS = 16384  # of a part: longer sequences have more parts, so that more ranks get some
TILE = 128  # tokens: chunks of several tiles begin at multiples of it
MAX_GAPS = 16  # of a part's keys, each of more than this fraction of the sequence
MIN_TILES = 8  # of a chunk, on average: with fewer, chunks of whole tiles would differ too much


def num_parts(seqlen: int) -> int:
    """The number of parts of a sequence."""
    count = FEWEST_PARTS
    while seqlen > count * MAX_TOKENS:
        count *= 2
    return count


def chunk_lengths(seqlen: int) -> np.ndarray:
    """The lengths of the chunks of a sequence, (2N,) int64. Some may be empty."""
    count = 2 * num_parts(seqlen)
    if seqlen < count * MIN_TILES * TILE:
        return even_lengths(seqlen, count)
    lengths = even_lengths(seqlen // TILE, count) * TILE
    lengths[-1] += seqlen % TILE
    return lengths


class PartSharding(ChunkedSharding):
    """A sharding by fixed parts."""

    def __init__(self, seqlen: int, part_owner: np.ndarray, world: int) -> None:
        """
        Args:
            part_owner: the rank of each part, (N,). Each block of P parts has every rank once.
        """
        lengths = chunk_lengths(seqlen)
        part_of_chunk = np.concatenate([np.arange(len(part_owner)), np.arange(len(part_owner))[::-1]])
        super().__init__(f"parts-{len(part_owner)}", lengths, part_owner[part_of_chunk], world)
        self.part_owner = part_owner
        edges = np.concatenate([[0], np.cumsum(lengths)]).tolist()
        chunks = [range(start, end) for start, end in pairwise(edges)]
        self.rows = [
            tuple(chunk for chunk in (chunks[number], chunks[-1 - number]) if chunk)
            for number in range(len(part_owner))
        ]
        """the tokens of each part, as ascending ranges"""

    def num_before_any(self, token: int) -> list[int]:
        """`num_before` of one token."""
        return self.num_before(np.array([token]))[0].tolist()


def deal_parts(mask: Mask, world: int) -> PartSharding:
    """Deals each block of P parts to P ranks, the part of the largest area to the rank with the least so far.

    Raises:
        ValueError: there are more ranks than parts.
    """
    count = num_parts(mask.seqlen_q)
    if world > count:
        raise ValueError(
            f"a sum in a fixed order has {count} parts for {mask.seqlen_q} tokens, too few for {world} ranks"
        )
    area_of_chunk = mask.row_areas(np.concatenate([[0], np.cumsum(chunk_lengths(mask.seqlen_q))]))
    area = area_of_chunk[:count] + area_of_chunk[count:][::-1]
    owner = np.empty(count, dtype=np.int64)
    load: np.ndarray = np.zeros(world, dtype=np.int64)
    for first in range(0, count, world):
        block = np.arange(first, min(first + world, count))
        largest_first = block[np.argsort(-area[block], kind="stable")]
        owner[largest_first] = np.argsort(load, kind="stable")[: len(block)]
        load[owner[block]] += area[block]
    return PartSharding(mask.seqlen_q, owner, world)


@dataclass(frozen=True)
class FixedPart:
    """The queries of one part, and the keys that they see under one mask: one kernel call for each head."""

    whole: Mask
    number: int
    rows: tuple[range, ...]
    """its tokens, as ascending ranges"""
    keys: tuple[range, ...]
    """the keys of its call: the visible ones, and short gaps between them. Ascending, disjoint ranges of
    tokens that do not touch"""

    @cached_property
    def mask(self) -> Mask:
        """The mask of its rows and keys, both in the order of the sequence, with all head groups."""
        num_rows, num_keys = (sum(map(len, ranges)) for ranges in (self.rows, self.keys))
        whole = self.whole
        if whole.grid is not None:
            return Mask(
                num_rows, num_keys, grid=part_of_grid(whole.grid, self.rows, self.keys), name=whole.name
            )
        bands = [[] for _ in whole.groups]
        for (row, rows), (column, keys) in product(_placed(self.rows), _placed(self.keys)):
            field = whole.crop((rows.start, rows.stop), (keys.start, keys.stop))
            for of_group, more in zip(bands, field.groups, strict=True):
                of_group.append(shift(more, row, column))
        return Mask(num_rows, num_keys, tuple(map(np.concatenate, bands)), name=whole.name)


def parts_of(mask: Mask, sharding: PartSharding) -> list[FixedPart]:
    """All parts with visible keys, in order."""
    parts = []
    for number, rows in enumerate(sharding.rows):
        crops = (mask.crop((part.start, part.stop), (0, mask.seqlen_k)) for part in rows)
        keys = _union(chain.from_iterable(map(_seen_keys, crops)), mask.seqlen_k // MAX_GAPS)
        if keys:
            parts.append(FixedPart(mask, number, rows, keys))
    return parts


def _seen_keys(mask: Mask) -> list[range]:
    """The keys that some row sees under some band or block, over all head groups."""
    if mask.grid is None:
        bands = np.concatenate(mask.groups)
        start = np.maximum(bands[:, K0], bands[:, Q0] + bands[:, LO])
        end = np.minimum(bands[:, K1], bands[:, Q1] + bands[:, HI])
    else:
        seen = (mask.grid.visible & (np.diff(mask.grid.q_bounds, axis=1) > 0)[..., None]).any(axis=1)
        group, block = np.nonzero(seen & (np.diff(mask.grid.k_bounds, axis=1) > 0))
        start = mask.grid.k_bounds[group, block]
        end = mask.grid.k_bounds[group, block + 1]
    return list(map(range, start.tolist(), end.tolist()))


def _union(ranges: Iterable[range], gap: int = 0) -> tuple[range, ...]:
    """The union of non-empty ranges, as ascending ranges that do not touch.

    Args:
        gap: so many tokens between two ranges, or fewer, are added.
    """
    merged: list[range] = []
    for part in sorted(ranges, key=lambda part: part.start):
        if merged and part.start <= merged[-1].stop + gap:
            merged[-1] = range(merged[-1].start, max(merged[-1].stop, part.stop))
        else:
            merged.append(part)
    return tuple(merged)


def union_of_keys(parts: list[FixedPart]) -> tuple[range, ...]:
    """The keys of any of these parts, as ascending ranges that do not touch."""
    return _union([keys for part in parts for keys in part.keys])


def _placed(ranges: tuple[range, ...]) -> list[tuple[int, range]]:
    """Each range with its first index in their concatenation."""
    starts = np.cumsum([0, *map(len, ranges)]).tolist()
    return list(zip(starts, ranges, strict=False))
