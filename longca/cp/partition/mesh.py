"""The mesh of ranks: a ring of head groups, the two dimensions of a hybrid strategy; and the division of heads
among ranks, and of a rank's heads into chunks.

A mesh of ring = 3 and heads = 2. Ranks of a row divide heads (all-to-all); ranks of a column run a plan (ring
or gather):

                 head rank 0   head rank 1
    ring rank 0      rank 0  ───  rank 1        group of rank 1: 0, 1
                       │            │
    ring rank 1      rank 2  ───  rank 3        ring of rank 1: 1, 3, 5
                       │            │
    ring rank 2      rank 4  ───  rank 5

8 query heads and 2 KV heads (ratio 4) on 2, 4 and 3 ranks of a group; each digit is the rank of a query head:

    KV head            0 0 0 0 1 1 1 1
    2 ranks            0 0 0 0 1 1 1 1    whole KV groups: each KV head goes to one rank
    4 ranks            0 0 1 1 2 2 3 3    more ranks than KV heads: KV head 0 is copied to ranks 0 and 1
    3 ranks            0 0 0 1 1 1 2 2    rank 1 cuts through both groups: its kernel call repeats a KV head (`expanded`)
"""  # noqa: E501

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise, zip_longest
from typing import TYPE_CHECKING

import numpy as np

from longca.cp.partition.sharding import Sharding, even_ranges

if TYPE_CHECKING:
    from longca.kernels import Problem

RANKS_PER_NODE = 8  # GPUs of one node

ChunkWeights = Sequence[int]
"""Relative sizes of chunks: (1, 2, 1) is a quarter of the heads, half of them, and the rest"""


@dataclass(frozen=True)
class Mesh:
    """A mesh of `ring` × `heads` ranks. Ranks of a head group are neighbours, so that their all-to-alls stay
    within a node.

    A plan has `ring` ranks. The tokens of each plan rank are split evenly, in order, among the ranks of its
    group.
    """

    ring: int
    heads: int = 1

    @property
    def world(self) -> int:
        return self.ring * self.heads

    def of(self, rank: int) -> tuple[int, int]:
        """(ring rank, head rank): the rank's position in its plan and in its head group."""
        return divmod(rank, self.heads)

    def group(self, rank: int) -> range:
        """The head group of a rank: the ranks that split heads with it."""
        start = rank // self.heads * self.heads
        return range(start, start + self.heads)

    def ring_of(self, rank: int) -> range:
        """The ring of a rank: the ranks of its plan, in the plan's order."""
        return range(rank % self.heads, self.world, self.heads)

    def tokens(self, sharding: Sharding, ring_rank: int) -> tuple[range, ...]:
        """The tokens of each rank of a head group, as local indices of its ring rank."""
        return even_ranges(int(sharding.num_tokens[ring_rank]), self.heads)

    def positions(self, sharding: Sharding, rank: int) -> np.ndarray:
        """Position ids of a rank's tokens, int64."""
        ring_rank, number = self.of(rank)
        mine = self.tokens(sharding, ring_rank)[number]
        return sharding.positions(ring_rank)[mine.start : mine.stop]


def head_groups(world: int, num_kv_heads: int, heads: int) -> Mesh:
    """The mesh with head groups of this size.

    Raises:
        ValueError: the size does not divide the number of ranks or of KV heads.
    """
    if world % heads:
        raise ValueError(f"{world} ranks are no whole number of head groups of {heads}")
    if num_kv_heads % heads:
        raise ValueError(
            f"{num_kv_heads} KV heads cannot be divided evenly among {heads} ranks of a head group"
        )
    return Mesh(world // heads, heads)


def hybrid(world: int, num_kv_heads: int) -> Mesh:
    """The mesh of USP: a ring of head groups.

    A group is as large as possible such that it splits the KV heads without copies, fits into a node and
    leaves a ring of two or more. Without such a group, all ranks split heads if possible, else all form a
    ring.
    """
    fit = [heads for heads in _divisors(world) if num_kv_heads % heads == 0 and heads <= RANKS_PER_NODE]
    mixed = [heads for heads in fit if 1 < heads < world]
    heads = max(mixed or fit)
    return Mesh(world // heads, heads)


def double_ring(world: int, num_kv_heads: int) -> Mesh:
    """The mesh of LoongTrain: a ring of head groups, divided into windows.

    A group is as large as possible such that it splits the KV heads without copies and leaves a ring with
    windows inside a node. Rings with a prime number of ranks have no windows and are single rings.
    """
    fit = [
        heads
        for heads in _divisors(world)
        if num_kv_heads % heads == 0 and windowed(Mesh(world // heads, heads)) > 1
    ]
    heads = max(fit, default=1)
    return Mesh(world // heads, heads)


def windowed(mesh: Mesh) -> int:
    """Ranks of a window (an inner ring): the largest number that fits, with its groups, into a node and
    leaves two or more windows; else 1."""
    most = RANKS_PER_NODE // mesh.heads
    return max(
        (window for window in _divisors(mesh.ring) if window <= most and window < mesh.ring), default=1
    )


def window_of(mesh: Mesh, windows: int) -> int:
    """Ranks of a window for a ring with this number of windows.

    Raises:
        ValueError: the number does not divide the ring.
    """
    if mesh.ring % windows:
        raise ValueError(f"a ring of {mesh.ring} cannot be divided evenly into {windows} windows")
    return mesh.ring // windows


def _divisors(number: int) -> list[int]:
    return [part for part in range(1, number + 1) if number % part == 0]


@dataclass(frozen=True)
class RankHeads:
    """The heads of one rank. Both ranges may be empty if there are more ranks than query heads."""

    q: range
    kv: range
    """KV heads of these query heads, which are sent to the rank"""
    local_kv: tuple[int, ...]
    """KV heads of the rank's kernel call, as indices into `kv`. A kernel assigns the same number of query
    heads to every KV head, so a KV head is repeated here if the rank's heads split a KV group"""

    @property
    def expanded(self) -> bool:
        """True if the kernel call repeats a KV head."""
        return len(self.local_kv) > len(self.kv)


@dataclass(frozen=True)
class HeadPlan:
    """The heads of all ranks, in the order of the heads.

    Each query head is on exactly one rank. In a plan of one chunk of the heads (`HeadChunk.heads`) it is on
    one rank at most.
    """

    num_q_heads: int
    num_kv_heads: int
    ranks: tuple[RankHeads, ...]

    @property
    def q(self) -> list[range]:
        return [share.q for share in self.ranks]

    @property
    def kv(self) -> list[range]:
        return [share.kv for share in self.ranks]

    @cached_property
    def replicated(self) -> bool:
        """True if some KV head is on several ranks, so that its gradient is a sum over them."""
        return sum(len(share.kv) for share in self.ranks) > self.num_kv_heads

    def mask_groups(self, rank: int, num_groups: int) -> range | None:
        """The mask's head groups of a rank, or None if no kernel call can have these heads.

        A kernel assigns the same number of KV heads to each mask group, so a rank needs whole groups, or
        heads of a single group.

        Args:
            num_groups: head groups of the mask.
        """
        share = self.ranks[rank]
        size = self.num_kv_heads // num_groups
        groups = range(share.kv.start // size, -(-share.kv.stop // size))
        whole = not share.expanded and share.kv.start % size == 0 and share.kv.stop % size == 0
        return groups if whole or len(groups) == 1 else None


@lru_cache(maxsize=64)  # a study requests each of a few plans thousands of times
def plan_heads(num_q_heads: int, num_kv_heads: int, world: int, *, whole: bool = False) -> HeadPlan:
    """Divides the heads, in order, among `world` ranks.

    Ranks get whole KV groups if there are enough, so that no KV head is sent twice. With more ranks than KV
    heads the query heads are split, and each rank gets copies of its KV heads.

    Args:
        whole: KV groups stay whole in any case; more ranks than KV heads leave some without heads.
    """
    ratio = num_q_heads // num_kv_heads
    if whole or world <= num_kv_heads:
        shares = (range(kv.start * ratio, kv.stop * ratio) for kv in even_ranges(num_kv_heads, world))
    else:
        shares = iter(even_ranges(num_q_heads, world))
    return HeadPlan(num_q_heads, num_kv_heads, tuple(share_of(q, ratio) for q in shares))


def share_of(q: range, ratio: int) -> RankHeads:
    """The share of a rank with these query heads.

    Args:
        ratio: query heads for each KV head.
    """
    if not q:
        return RankHeads(q, range(0), ())
    kv = range(q.start // ratio, -(-q.stop // ratio))
    served = [min(q.stop, (head + 1) * ratio) - max(q.start, head * ratio) for head in kv]
    # query heads for each KV head of the kernel call: the largest common divisor, which minimises copies
    step = math.gcd(*served)
    return RankHeads(q, kv, tuple(index for index, count in enumerate(served) for _ in range(count // step)))


@dataclass(frozen=True)
class HeadChunk:
    """One chunk: a kernel call on every rank. Ranges are by rank; they are empty for ranks without heads in
    this chunk."""

    heads: HeadPlan
    """the heads that each rank computes"""
    arriving: tuple[range, ...]
    """KV heads that arrive with the chunk: those of its query heads, except those of earlier chunks"""
    leaving: tuple[range, ...]
    """KV heads whose gradients are sent after the chunk: those without contributions of later chunks"""

    @cached_property
    def q(self) -> tuple[range, ...]:
        """Query heads of each rank."""
        return tuple(share.q for share in self.heads.ranks)


@lru_cache(maxsize=256)  # advice requests the same few chunks again for each kernel
def split_heads(
    heads: HeadPlan, weights: ChunkWeights, num_groups: int = 1, parts: int = 1
) -> tuple[HeadChunk, ...] | None:
    """Divides the heads into chunks, in order and as close to the weights as possible. None if impossible.

    A chunk has whole KV heads, or some of the query heads of one KV head.

    Args:
        num_groups: head groups of the mask. A chunk has whole groups, or heads of one group.
        parts: number of equal parts into which the query heads of a KV head may be divided. The size of a
            chunk must divide their number, since kernels pack query heads into tiles.
    """
    of_ranks = [
        _split_share(share, heads.num_q_heads // heads.num_kv_heads, weights, parts) for share in heads.ranks
    ]
    if any(shares is None for shares in of_ranks):
        return None
    rows = [_with_kv_moves(shares) for shares in of_ranks if shares is not None]
    none = share_of(range(0), 1), range(0), range(0)
    columns = [tuple(zip(*of_ranks, strict=True)) for of_ranks in zip_longest(*rows, fillvalue=none)]
    chunks = tuple(
        HeadChunk(replace(heads, ranks=ranks), arriving, leaving) for ranks, arriving, leaving in columns
    )
    fit = all(
        chunk.heads.mask_groups(rank, num_groups) is not None
        for chunk in chunks
        for rank in range(len(heads.ranks))
    )
    return chunks if fit else None


def divided(
    heads: HeadPlan, num_groups: int, weights: Sequence[ChunkWeights], parts_of_kv_head: Sequence[int]
) -> list[tuple[HeadChunk, ...]]:
    """The possible divisions by these weights and numbers of parts of a KV head."""
    return [
        chunks
        for way in weights
        for parts in parts_of_kv_head
        if (chunks := split_heads(heads, way, num_groups, parts)) is not None
    ]


def _split_share(share: RankHeads, ratio: int, weights: ChunkWeights, parts: int) -> list[RankHeads] | None:
    """The chunks of one rank. There may be fewer or more of them than weights."""
    of_kv_heads = [
        range(max(head * ratio, share.q.start), min((head + 1) * ratio, share.q.stop)) for head in share.kv
    ]
    borders = {edge for part in of_kv_heads for edge in (part.start, part.stop)}
    fine = {
        part.start + len(part) * number // parts
        for part in of_kv_heads
        for number in range(parts)
        if len(part) * number % parts == 0
    }
    found = []
    for start, end in pairwise(_nearest_edges(share.q, weights, sorted(borders | fine))):
        # edges inside of a KV head that begins or ends in another chunk
        inside = [edge for edge in borders if start < edge < end]
        cuts = {min(inside)} if inside and start not in borders else set()
        cuts |= {max(inside)} if inside and end not in borders else set()
        found += pairwise([start, *sorted(cuts), end])
    for start, end in found:
        whole = next(part for part in of_kv_heads if start in part)
        if end <= whole.stop and len(whole) % (end - start):
            return None
    return [share_of(range(start, end), ratio) for start, end in found]


def _nearest_edges(heads: range, weights: ChunkWeights, allowed: list[int]) -> list[int]:
    """Distinct edges of chunks: the allowed ones nearest to those of the weights."""
    total = sum(weights)
    wanted = (heads.start + len(heads) * weight / total for weight in accumulate(weights, initial=0))
    return (
        sorted({min(allowed, key=lambda edge: (abs(edge - where), -edge)) for where in wanted})
        if heads
        else []
    )


def _with_kv_moves(shares: list[RankHeads]) -> list[tuple[RankHeads, range, range]]:
    """(chunk of one rank, KV heads that arrive with it, KV heads whose gradients are sent after it) for each
    chunk."""
    ranges = [share.kv for share in shares]
    return [
        (
            share,
            share.kv if previous != share.kv else share.kv[:0],
            share.kv if following != share.kv else share.kv[:0],
        )
        for share, previous, following in zip(shares, [None, *ranges], [*ranges[1:], None], strict=False)
    ]


SUM_BYTES = 4  # of an element of a float32 sum


def formula_bytes(problem: Problem, mesh: Mesh) -> float:
    """Bytes by Table 3 of arXiv 2510.17896, with Na = `mesh.heads` and Np = `mesh.ring`.

    Without a ring that is (N−1)/N² · T·(Hkv + Hq)·D·2 elements. The table is for forward passes: backward,
    the ring part doubles, since KV circulates again and its gradients are sent to their owners.
    """
    element = problem.dtype.itemsize * problem.mask.seqlen_q * problem.head_dim * 2
    heads = (mesh.heads - 1) / (mesh.ring * mesh.heads**2) * (problem.num_kv_heads + problem.num_q_heads)
    ring = (mesh.ring - 1) / mesh.world * problem.num_kv_heads
    return element * (heads + ring * (2 if problem.needs_backward else 1))


def summing_ring_bytes(problem: Problem, ring: int, num_elements: float) -> float:
    """Bytes of a ring in which gradients are sent along with the keys: K and V, and backward also their
    float32 gradients, with one more hop.

    Args:
        num_elements: elements of the keys of a rank, the same as of the values.
    """
    hops = (ring - 1) * problem.dtype.itemsize + (
        ring * SUM_BYTES if problem.needs_backward and ring > 1 else 0
    )
    return 2 * num_elements * hops
