"""Which rank holds which tokens, and in what order: the permutation of the sequence that a plan is made for.

A rank holds its tokens in the order of the sequence. Any length and any number of ranks will do; nothing is padded.
Shapes: P ranks, S tokens, R runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True, eq=False)
class TokenRanges:
    """Ranges of the sequence's tokens, each for one rank: (n,) int64 each, by rank and then by token; those of a rank never touch."""

    rank: np.ndarray
    first: np.ndarray
    behind: np.ndarray

    @classmethod
    def union(cls, rank: np.ndarray, first: np.ndarray, behind: np.ndarray, seqlen: int) -> TokenRanges:
        """Of non-empty ranges in any order."""
        apart = rank * (seqlen + 1)  # one axis for all ranks, on which ranges of different ranks never touch
        order = np.argsort(first + apart, kind="stable")
        begin, reached = (first + apart)[order], np.maximum.accumulate((behind + apart)[order])
        starts = np.flatnonzero(np.append(True, begin[1:] > reached[:-1])[:len(begin)])
        ends = np.append(starts[1:], len(begin))[:len(starts)] - 1
        owner = rank[order][starts]
        return cls(owner, begin[starts] - owner * (seqlen + 1), reached[ends] - owner * (seqlen + 1))

    def of(self, rank: int) -> tuple[np.ndarray, np.ndarray]:
        """(first, behind) of one rank."""
        here = slice(*np.searchsorted(self.rank, [rank, rank + 1]))
        return self.first[here], self.behind[here]


class Sharding:
    """A permutation of S tokens over P ranks."""

    def __init__(self, name: str, seqlen: int, world: int) -> None:
        self.name, self.seqlen, self.world = name, seqlen, world

    def ranges(self, rank: int) -> tuple[range, ...]:
        """The tokens of a rank, rising; one with a step is a stripe."""
        raise NotImplementedError

    def before(self, tokens: np.ndarray) -> np.ndarray:
        """How many tokens of each rank come before these ones, (n,) → (n, P): what is a rank's own index for its own tokens."""
        raise NotImplementedError

    def before_of(self, tokens: np.ndarray, rank: int) -> np.ndarray:
        """`before` for one rank, (n,)."""
        raise NotImplementedError

    def counts(self, ranges: TokenRanges) -> np.ndarray:
        """How many tokens that rank s holds are in rank r's ranges, (P, P) int64 by (r, s)."""
        raise NotImplementedError

    def hulls(self, ranges: TokenRanges) -> tuple[np.ndarray, np.ndarray]:
        """First and behind the last of those tokens as indices into what s holds, (P, P) each; first >= behind where there are none."""
        raise NotImplementedError

    @cached_property
    def num_tokens(self) -> np.ndarray:
        """Of each rank, (P,)."""
        return self.before(np.array([self.seqlen]))[0]

    def positions(self, rank: int) -> np.ndarray:
        """Position ids of what a rank holds, in its order, int64: for rotary embeddings and losses."""
        parts = [np.arange(part.start, part.stop, part.step, dtype=np.int64) for part in self.ranges(rank)]
        return np.concatenate([np.empty(0, dtype=np.int64), *parts])

    @cached_property
    def order(self) -> np.ndarray:
        """Position ids of all ranks, one after the other, (S,): `x[order]` is x as the ranks hold it."""
        return np.concatenate([self.positions(rank) for rank in range(self.world)])

    @cached_property
    def inverse(self) -> np.ndarray:
        """Where in `order` each token is, (S,): `x[order][inverse]` is x."""
        found = np.empty(self.seqlen, dtype=np.int64)
        found[self.order] = np.arange(self.seqlen)
        return found


class ChunkedSharding(Sharding):
    """Runs of tokens, each on one rank."""

    def __init__(self, name: str, lengths: Sequence[int] | np.ndarray, owners: Sequence[int] | np.ndarray, world: int) -> None:
        """
        Args:
            lengths: of the runs in the order of the sequence; empty ones are left out.
            owners: the rank of each.
        """
        length, owner = np.asarray(lengths, dtype=np.int64), np.asarray(owners, dtype=np.int64)
        super().__init__(name, int(length.sum()), world)
        self.owner = owner[length > 0]
        self.edges = np.concatenate([[0], np.cumsum(length[length > 0])])
        """run n is tokens edges[n]..edges[n + 1]"""
        held = np.zeros((len(self.owner) + 1, world), dtype=np.int64)
        held[np.arange(1, len(self.owner) + 1), self.owner] = np.diff(self.edges)
        self._before_edges = np.cumsum(held, axis=0)
        self.offset = self._before_edges[np.arange(len(self.owner)), self.owner]
        """index of a run's first token on its rank"""

    def ranges(self, rank: int) -> tuple[range, ...]:
        mine = np.flatnonzero(self.owner == rank)
        return tuple(range(first, behind) for first, behind in zip(self.edges[mine].tolist(), self.edges[mine + 1].tolist(), strict=True))

    def before(self, tokens: np.ndarray) -> np.ndarray:
        run = self.run_of(tokens)
        found = self._before_edges[run]
        inside = np.flatnonzero(tokens > self.edges[run])
        found[inside, self.owner[run[inside]]] += tokens[inside] - self.edges[run[inside]]
        return found

    def before_of(self, tokens: np.ndarray, rank: int) -> np.ndarray:
        run = self.run_of(tokens)
        into = np.where(tokens > self.edges[run], tokens - self.edges[run], 0)
        return self._before_edges[run, rank] + into * (np.append(self.owner, -1)[run] == rank)

    def run_of(self, tokens: np.ndarray) -> np.ndarray:
        """The run of each token; R behind the last."""
        return np.searchsorted(self.edges, tokens, side="right") - 1

    def counts(self, ranges: TokenRanges) -> np.ndarray:
        return by_rank(np.add, ranges.rank, self.before(ranges.behind) - self.before(ranges.first), self.world, 0)

    def hulls(self, ranges: TokenRanges) -> tuple[np.ndarray, np.ndarray]:
        first, behind = self.before(ranges.first), self.before(ranges.behind)
        some = first < behind
        return (by_rank(np.minimum, ranges.rank, np.where(some, first, self.seqlen), self.world, self.seqlen),
                by_rank(np.maximum, ranges.rank, np.where(some, behind, 0), self.world, 0))


class StripedSharding(Sharding):
    """Token t is on rank t mod P."""

    def __init__(self, seqlen: int, world: int) -> None:
        super().__init__("stripes", seqlen, world)

    def ranges(self, rank: int) -> tuple[range, ...]:
        return (range(rank, self.seqlen, self.world),) if rank < self.seqlen else ()

    def before(self, tokens: np.ndarray) -> np.ndarray:
        return (tokens[:, None] + np.arange(self.world - 1, -1, -1)) // self.world

    def before_of(self, tokens: np.ndarray, rank: int) -> np.ndarray:
        return (tokens + self.world - 1 - rank) // self.world

    def counts(self, ranges: TokenRanges) -> np.ndarray:
        return (self.sum_before(ranges.rank, ranges.behind // self.world, ranges.behind % self.world, np.ones_like(ranges.rank))
                - self.sum_before(ranges.rank, ranges.first // self.world, ranges.first % self.world, np.ones_like(ranges.rank)))

    def sum_before(self, rank: np.ndarray, rounds: np.ndarray, rest: np.ndarray, times: np.ndarray) -> np.ndarray:
        """For each rank r, the sum of `rounds + times · (rest > s)` over its entries, (P, P) int64 by (r, s).

        The tokens of s before token x are x // P, and one more where x mod P > s: with `times` = 1, a sum of `before`.
        """
        whole = np.bincount(rank, rounds, self.world).astype(np.int64)
        steps = np.bincount(rank * self.world + rest, times, self.world ** 2).astype(np.int64).reshape(self.world, self.world)
        upto = np.cumsum(steps, axis=1)
        return whole[:, None] + upto[:, -1:] - upto

    def hulls(self, ranges: TokenRanges) -> tuple[np.ndarray, np.ndarray]:
        """From a rank's first range to its last one for all s alike."""
        first = by_rank(np.minimum, ranges.rank, ranges.first, self.world, self.seqlen)
        behind = by_rank(np.maximum, ranges.rank, ranges.behind, self.world, 0)
        return self.before(first), self.before(behind)


def by_rank(reduce: np.ufunc, rank: np.ndarray, rows: np.ndarray, world: int, initial: int) -> np.ndarray:
    """The rows (n, …) of each rank reduced to one, (P, …); `rank` rises, and ranks without rows get the initial value."""
    found = np.full((world, *rows.shape[1:]), initial, dtype=rows.dtype)
    starts = np.flatnonzero(np.diff(rank, prepend=-1))
    if len(starts):
        found[rank[starts]] = reduce.reduceat(rows, starts, axis=0)
    return found
