"""Shardings: assignments of tokens to ranks. A sharding is a permutation of the sequence; a plan is made for
one sharding.

A rank holds its tokens in the order of the sequence. Any length and any number of ranks are supported,
without padding. The rank of each of 12 tokens, for P = 2 ranks:

    token                0  1  2  3  4  5  6  7  8  9 10 11
    contiguous           0  0  0  0  0  0  1  1  1  1  1  1    chunked: one chunk a rank
    zigzag               0  0  0  1  1  1  1  1  1  0  0  0    chunked: rank r holds chunks r and 2P − 1 − r
    LPT (`heap-2`)       1  1  0  0  0  0  1  1  1  1  0  0    chunked: chunks of 2 tokens, dealt by their causal area
    striped              0  1  0  1  0  1  0  1  0  1  0  1    token t is on rank t mod P

Shapes: P ranks, S tokens, C chunks. A "local index" is the index of a token among the tokens of its rank.

Names of shardings are data: they appear in notes of records, in tables and in `make_sharding`.

    name            sharding                    balance by                            keeps neighbours together
    contiguous      one chunk a rank            nothing                               yes
    zigzag          chunks r and 2P − 1 − r     what grows along the sequence         half
    heap-N          LPT, chunks of N tokens     the mask's area, largest chunk first  no
    level-N         rebalanced contiguous       the mask's area, by swapping chunks   mostly
    stripes         token t on rank t mod P     everything, in every step             no

LPT is the rule "longest processing time first".
"""  # noqa: E501

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from longca.masks import Mask


@dataclass(frozen=True, eq=False)
class TokenRanges:
    """Ranges of tokens of the sequence, each one for some rank.

    Three arrays (n,) int64, sorted by rank and then by token. Ranges of one rank neither overlap nor touch.
    """

    rank: np.ndarray
    start: np.ndarray
    end: np.ndarray

    @classmethod
    def union(cls, rank: np.ndarray, start: np.ndarray, end: np.ndarray, seqlen: int) -> TokenRanges:
        """Merges overlapping or adjacent ranges of each rank; the given non-empty ranges may be in any
        order."""
        apart = rank * (seqlen + 1)  # one axis for all ranks, on which ranges of different ranks never touch
        order = np.argsort(start + apart, kind="stable")
        begin = (start + apart)[order]
        reached = np.maximum.accumulate((end + apart)[order])
        heads = np.flatnonzero(np.append(True, begin[1:] > reached[:-1])[: len(begin)])
        tails = np.append(heads[1:], len(begin))[: len(heads)] - 1
        owner = rank[order][heads]
        return cls(owner, begin[heads] - owner * (seqlen + 1), reached[tails] - owner * (seqlen + 1))

    def of(self, rank: int) -> tuple[np.ndarray, np.ndarray]:
        """(starts, ends) of one rank's ranges."""
        here = slice(*np.searchsorted(self.rank, [rank, rank + 1]))
        return self.start[here], self.end[here]


class Sharding:
    """A permutation of S tokens over P ranks."""

    def __init__(self, name: str, seqlen: int, world: int) -> None:
        self.name = name
        self.seqlen = seqlen
        self.world = self.num_rows = world

    def ranges(self, rank: int) -> tuple[range, ...]:
        """The tokens of a rank as ascending ranges. A stripe is one range with a step."""
        raise NotImplementedError

    def num_before(self, tokens: np.ndarray) -> np.ndarray:
        """Each rank's tokens before each of these tokens, (n,) → (n, P); for its own rank, its index."""
        raise NotImplementedError

    def num_before_on(self, tokens: np.ndarray, rank: int) -> np.ndarray:
        """`num_before` for one rank, (n,)."""
        raise NotImplementedError

    def count_in(self, ranges: TokenRanges) -> np.ndarray:
        """Counts the tokens of rank s inside the ranges of rank r, (P, P) int64 by (r, s)."""
        raise NotImplementedError

    def hulls(self, ranges: TokenRanges) -> tuple[np.ndarray, np.ndarray]:
        """(start, end) of those tokens as local indices of s, (P, P) each: from the first one to the last.
        start >= end means no token."""
        raise NotImplementedError

    @cached_property
    def num_tokens(self) -> np.ndarray:
        """The number of tokens on each rank, (P,)."""
        return self.num_before(np.array([self.seqlen]))[0]

    def positions(self, rank: int) -> np.ndarray:
        """Position ids of a rank's tokens in its order, int64: for rotary embeddings and losses."""
        parts = [np.arange(part.start, part.stop, part.step, dtype=np.int64) for part in self.ranges(rank)]
        return np.concatenate([np.empty(0, dtype=np.int64), *parts])

    @cached_property
    def order(self) -> np.ndarray:
        """Concatenated position ids of all ranks, (S,): `x[order]` is x in the order of the ranks."""
        return np.concatenate([self.positions(rank) for rank in range(self.world)])

    @cached_property
    def inverse(self) -> np.ndarray:
        """The index of each token in `order`, (S,): `x[order][inverse]` is x."""
        found = np.empty(self.seqlen, dtype=np.int64)
        found[self.order] = np.arange(self.seqlen)
        return found


class ChunkedSharding(Sharding):
    """Consecutive chunks of tokens, each on one rank. Chunks may have different lengths."""

    def __init__(
        self, name: str, lengths: Sequence[int] | np.ndarray, owners: Sequence[int] | np.ndarray, world: int
    ) -> None:
        """Chunks of these lengths, in their order, and the rank of each. Empty ones are dropped."""
        length = np.asarray(lengths, dtype=np.int64)
        owner = np.asarray(owners, dtype=np.int64)
        super().__init__(name, int(length.sum()), world)
        self.owner = self.row = owner[length > 0]
        length = length[length > 0]
        self.edges = np.append(0, length.cumsum())
        """chunk n is tokens edges[n]..edges[n + 1], (C + 1,)"""
        held = np.zeros((len(self.owner) + 1, world), dtype=np.int64)
        held[np.arange(1, len(self.owner) + 1), self.owner] = length
        self._before_edges = held.cumsum(axis=0)
        self.offset = self._before_edges[np.arange(len(self.owner)), self.owner]
        """local index of each chunk's first token, (C,)"""

    def ranges(self, rank: int) -> tuple[range, ...]:
        mine = np.flatnonzero(self.owner == rank)
        return tuple(
            range(start, end)
            for start, end in zip(self.edges[mine].tolist(), self.edges[mine + 1].tolist(), strict=True)
        )

    def num_before(self, tokens: np.ndarray) -> np.ndarray:
        chunk = self.chunk_of(tokens)
        before = self._before_edges[chunk]
        inside = np.flatnonzero(tokens > self.edges[chunk])
        before[inside, self.owner[chunk[inside]]] += tokens[inside] - self.edges[chunk[inside]]
        return before

    def num_before_on(self, tokens: np.ndarray, rank: int) -> np.ndarray:
        chunk = self.chunk_of(tokens)
        into = np.where(tokens > self.edges[chunk], tokens - self.edges[chunk], 0)
        return self._before_edges[chunk, rank] + into * (np.append(self.owner, -1)[chunk] == rank)

    @cached_property
    def inverse(self) -> np.ndarray:
        first = np.cumsum(self.num_tokens) - self.num_tokens
        shift = first[self.owner] + self.offset - self.edges[:-1]
        return np.arange(self.seqlen) + np.repeat(shift, np.diff(self.edges))

    def chunk_of(self, tokens: np.ndarray) -> np.ndarray:
        """The chunk of each token; C for tokens at or after the end of the sequence."""
        return np.searchsorted(self.edges, tokens, side="right") - 1

    def count_in(self, ranges: TokenRanges) -> np.ndarray:
        return by_rank(
            np.add, ranges.rank, self.num_before(ranges.end) - self.num_before(ranges.start), self.num_rows, 0
        )

    def hulls(self, ranges: TokenRanges) -> tuple[np.ndarray, np.ndarray]:
        start = self.num_before(ranges.start)
        end = self.num_before(ranges.end)
        some = start < end
        return (
            by_rank(np.minimum, ranges.rank, np.where(some, start, self.seqlen), self.num_rows, self.seqlen),
            by_rank(np.maximum, ranges.rank, np.where(some, end, 0), self.num_rows, 0),
        )


class StripedSharding(Sharding):
    """Stripes: token t is on rank t mod P."""

    def __init__(self, seqlen: int, world: int) -> None:
        super().__init__("stripes", seqlen, world)

    def ranges(self, rank: int) -> tuple[range, ...]:
        return (range(rank, self.seqlen, self.world),) if rank < self.seqlen else ()

    def num_before(self, tokens: np.ndarray) -> np.ndarray:
        return (tokens[:, None] + np.arange(self.world - 1, -1, -1)) // self.world

    def num_before_on(self, tokens: np.ndarray, rank: int) -> np.ndarray:
        return (tokens + self.world - 1 - rank) // self.world

    def count_in(self, ranges: TokenRanges) -> np.ndarray:
        return self.sum_before(
            ranges.rank, ranges.end // self.world, ranges.end % self.world, np.ones_like(ranges.rank)
        ) - self.sum_before(
            ranges.rank, ranges.start // self.world, ranges.start % self.world, np.ones_like(ranges.rank)
        )

    def sum_before(
        self, rank: np.ndarray, rounds: np.ndarray, rest: np.ndarray, times: np.ndarray
    ) -> np.ndarray:
        """For each rank r, the sum of `rounds + times · (rest > s)` over its entries, (P, P) int64 by (r, s).

        Rank s has x // P tokens before token x, and one more where x mod P > s. So with `times` = 1 this is a
        sum of `num_before`.
        """
        whole = np.bincount(rank, rounds, self.world).astype(np.int64)
        steps = (
            np.bincount(rank * self.world + rest, times, self.world**2)
            .astype(np.int64)
            .reshape(self.world, self.world)
        )
        upto = np.cumsum(steps, axis=1)
        return whole[:, None] + upto[:, -1:] - upto

    def hulls(self, ranges: TokenRanges) -> tuple[np.ndarray, np.ndarray]:
        """From a rank's first range to its last one, the same for all s."""
        start = by_rank(np.minimum, ranges.rank, ranges.start, self.world, self.seqlen)
        end = by_rank(np.maximum, ranges.rank, ranges.end, self.world, 0)
        return self.num_before(start), self.num_before(end)


def by_rank(reduce: np.ufunc, rank: np.ndarray, rows: np.ndarray, world: int, initial: int) -> np.ndarray:
    """Reduces the rows (n, …) of each rank to one row, (P, …). `rank` must be ascending; ranks without rows
    get the initial value."""
    table = np.full((world, *rows.shape[1:]), initial, dtype=rows.dtype)
    starts = np.append(True, rank[1:] != rank[:-1])[: len(rank)].nonzero()[0]
    if len(starts):
        table[rank[starts]] = reduce.reduceat(rows, starts, axis=0)
    return table


def even_ranges(total: int, parts: int) -> tuple[range, ...]:
    """Divides 0..total into successive ranges whose lengths differ by at most one, longer ones first. Some
    may be empty."""
    edges = [0, *np.cumsum(even_lengths(total, parts)).tolist()]
    return tuple(range(start, end) for start, end in pairwise(edges))


def even_lengths(total: int, parts: int) -> np.ndarray:
    """The lengths of `even_ranges`, (parts,) int64."""
    short, longer = divmod(total, parts)
    return short + (np.arange(parts) < longer)


CANDIDATES = (
    *("contiguous", "zigzag"),
    *(f"heap-{chunk}" for chunk in (1024, 2048, 4096, 512)),
    *(f"level-{chunk}" for chunk in (1024, 2048, 256)),
    "stripes",
)
"""names of the shardings that planners try by default; of equally cheap ones the first counts"""

# limits of `rebalanced`
TARGET_IMBALANCE = 1.05  # it stops when no rank has more than this multiple of the mean area
MAX_SWAPS = 192
SWAP_PARTNERS = 4  # number of least loaded ranks that are searched for a chunk to swap


def contiguous(seqlen: int, world: int) -> Sharding:
    """Rank r holds the r-th part. Under a sliding window a rank needs only the keys of its neighbours."""
    return ChunkedSharding("contiguous", even_lengths(seqlen, world), range(world), world)


def zigzag(seqlen: int, world: int) -> Sharding:
    """Rank r holds the r-th of 2P chunks and the r-th from the end, which balances causal attention."""
    owners = [*range(world), *reversed(range(world))]
    return ChunkedSharding("zigzag", even_lengths(seqlen, 2 * world), owners, world)


def stripes(seqlen: int, world: int) -> Sharding:
    """Token t is on rank t mod P: balanced in every step, but with more row ends that tiles must mask."""
    return StripedSharding(seqlen, world)


def lpt(mask: Mask, world: int, chunk: int) -> Sharding:
    """Chunks of about `chunk` tokens, the same number on each rank, assigned by LPT (`heap-N`).

    Chunks are assigned in order of decreasing area, each to the least loaded rank that still has room.
    """
    lengths, work, per_rank = _chunks(mask, world, chunk)
    owners = [0] * len(lengths)
    least = [(0, 0, rank) for rank in range(world)]  # area and number of chunks so far
    order = np.argsort(-work, kind="stable")
    for number, more in zip(order.tolist(), work[order].tolist(), strict=True):
        area, held, rank = least[0]
        owners[number] = rank
        if held + 1 < per_rank:
            heapq.heapreplace(least, (area + more, held + 1, rank))
        else:
            heapq.heappop(least)
    return ChunkedSharding(f"heap-{chunk}", lengths, owners, world)


def rebalanced(mask: Mask, world: int, chunk: int) -> Sharding:
    """Contiguous, except for some swapped chunks of about `chunk` tokens (`level-N`), so that most documents
    stay contiguous.

    The rank with the largest area repeatedly swaps a chunk for a smaller one of a less loaded rank, until no
    rank exceeds TARGET_IMBALANCE of the mean, no swap helps, or MAX_SWAPS is reached.
    """
    lengths, work, per_rank = _chunks(mask, world, chunk)
    held = np.arange(len(work)).reshape(world, per_rank)
    # of each rank, the smallest first
    held = np.take_along_axis(held, np.argsort(work[held], axis=1, kind="stable"), axis=1)
    held_work = work[held]
    area = held_work.sum(axis=1)
    enough = TARGET_IMBALANCE * area.mean()
    for _ in range(MAX_SWAPS):
        most = int(area.argmax())
        if area[most] <= enough:
            break
        partners = area.argsort()[:SWAP_PARTNERS]
        larger, one, taker, other = best_swap(
            held_work[most], held_work[partners], int(area[most]), area[partners], partners
        )
        if larger >= area[most]:
            break
        less = held_work[most, one] - held_work[taker, other]
        area[most], area[taker] = area[most] - less, area[taker] + less
        for rows in (held, held_work):
            rows[most, one], rows[taker, other] = rows[taker, other], rows[most, one]
        for rank in (most, taker):
            order = held_work[rank].argsort(kind="stable")
            held[rank], held_work[rank] = held[rank][order], held_work[rank][order]
    owners = np.empty(len(work), dtype=np.int64)
    owners[held] = np.arange(world)[:, None]
    return ChunkedSharding(f"level-{chunk}", lengths, owners, world)


def best_swap(
    ours: np.ndarray, theirs: np.ndarray, our_area: int, their_areas: np.ndarray, ranks: np.ndarray
) -> tuple[int, int, int, int]:
    """(the larger of both areas after the swap, index of our chunk, the other rank, index of its chunk).

    Args:
        ours, theirs: the ascending areas of our chunks (n,), and of those of other ranks (ranks, n).
        our_area, their_areas, ranks: the sum of ours, the sums of theirs, none of which is larger, and the
            other ranks, (ranks,) each.
    """
    # All ranks are searched at once on one axis, on which the values of each rank lie above those of the
    # previous one. Values are twice the areas, so that half a difference is an integer.
    count, num_chunks = theirs.shape
    rows = np.arange(count)[:, None]
    shares = their_areas[:, None]
    apart = rows * (4 * our_area + 2)
    first = rows * num_chunks
    at = (2 * theirs + apart).ravel().searchsorted(2 * ours + (apart + shares - our_area))
    # nearest values below and above half the difference, for each of our chunks
    nearest: np.ndarray = np.empty((count, 2, num_chunks), dtype=at.dtype)
    np.maximum(at - 1, first, out=nearest[:, 0])
    np.minimum(at, first + (num_chunks - 1), out=nearest[:, 1])
    less = ours - theirs.ravel()[nearest]
    larger = np.maximum(our_area - less, shares[..., None] + less).reshape(count, -1)
    places = larger.argmin(axis=1).tolist()
    nearest = nearest.reshape(count, -1)
    return min(
        (int(larger[row, place]), place % num_chunks, rank, int(nearest[row, place]) % num_chunks)
        for row, (place, rank) in enumerate(zip(places, ranks.tolist(), strict=True))
    )


def _chunks(mask: Mask, world: int, chunk: int) -> tuple[np.ndarray, np.ndarray, int]:
    """(lengths of equal chunks of about `chunk` tokens, their areas, chunks for each rank)."""
    per_rank = max(1, round(mask.seqlen_q / (world * chunk)))
    lengths = even_lengths(mask.seqlen_q, world * per_rank)
    key = ("row areas", world * per_rank)
    if key not in mask.kept:
        mask.kept[key] = mask.row_areas(np.concatenate([[0], np.cumsum(lengths)]))
    return lengths, mask.kept[key], per_rank


def make_sharding(name: str, mask: Mask, world: int) -> Sharding:
    """Makes the sharding of that name for the mask's tokens: contiguous, zigzag, stripes, heap-N or level-N.

    Raises:
        ValueError: there is no sharding of that name.
    """
    kind, _, chunk = name.partition("-")
    by_area = {"heap": lpt, "level": rebalanced}
    if kind in by_area and chunk.isdigit() and int(chunk):
        return by_area[kind](mask, world, int(chunk))
    plain = {"contiguous": contiguous, "zigzag": zigzag, "stripes": stripes}
    if name not in plain:
        raise ValueError(f"no placement '{name}': there are {', '.join(plain)}, heap-N and level-N")
    return plain[name](mask.seqlen_q, world)


def worth_trying(name: str, mask: Mask) -> bool:
    """True if this sharding may be the best for a mask: `level-N` gain little with one or two bands."""
    return not name.startswith("level") or mask.grid is not None or max(map(len, mask.groups)) > 2
