"""Divisions of heads into chunks: one chunk is computed while the next arrives and the previous results are
sent back.

More chunks overlap more of the messages, but each is another kernel call. For each of several divisions, the
timeline of one rank is estimated from heads, pairs, bytes and the unit costs of
`longca.cp.schedule.planner`; the fastest is chosen, with few chunks preferred. All ranks estimate the same
rank, so their choices agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise, zip_longest
from typing import TYPE_CHECKING

import numpy as np

from longca.core import BACKWARD_FLOPS_RATIO
from longca.cp.partition.mesh import HeadPlan, RankHeads, share_of
from longca.cp.schedule.planner import CALL_S, INTRA_NODE_BYTES_PER_S, MESSAGE_S, head_pipeline

if TYPE_CHECKING:
    from longca.core import CallSpec

ChunkWeights = Sequence[int]
"""Relative sizes of chunks: (1, 2, 1) is a quarter of the heads, half of them, and the rest"""

CANDIDATE_WEIGHTS: tuple[ChunkWeights, ...] = ((1,), (1, 1), (1, 2, 1), (1, 1, 1, 1), (1, 6, 1), (1, 3, 3, 1))
"""The arrival of the first chunk and the results of the last one cannot overlap, so small chunks at both ends
are best."""
PARTS_OF_KV_HEAD = (1, 2, 4)
"""The numbers of parts into which the query heads of a KV head may be divided."""
GAIN_OF_CHUNK = 1.005
"""Least estimated speed-up of each additional chunk."""


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


@dataclass(frozen=True)
class HeadCost:
    """The forward cost of heads on the rank with the most heads."""

    head_s: float
    """seconds to compute a query head"""
    head_bytes: float
    """bytes of one head of one tensor, received from or sent to the owners of its tokens"""
    num_calls: int = 1
    """kernel calls for each chunk"""


def choose_chunks(
    heads: HeadPlan,
    num_groups: int,
    cost: HeadCost,
    needs_backward: bool,
    weights: ChunkWeights | None = None,
    parts_of_kv_head: Sequence[int] = PARTS_OF_KV_HEAD,
) -> tuple[HeadChunk, ...]:
    """Chooses the estimated fastest chunks, for a forward call or, with `needs_backward`, for one call in
    each direction.

    Args:
        num_groups: head groups of the mask.
        weights: use chunks of these weights instead, as close as possible.
        parts_of_kv_head: numbers of parts into which the query heads of a KV head may be divided.

    Raises:
        ValueError: heads cannot be divided by these weights.
    """
    if weights is None:
        candidates = _candidates(heads, num_groups, tuple(parts_of_kv_head))
        seconds = candidates.estimated_s(cost, needs_backward) * candidates.loss
        return candidates.chunks[int(seconds.argmin())]
    candidates = divided(heads, num_groups, [weights], parts_of_kv_head)
    if not candidates:
        raise ValueError(
            f"heads of {len(heads.ranks)} ranks cannot be cut as {':'.join(map(str, weights))}: chunks "
            "would have no whole head groups of the mask, or not divide the query heads of a KV head. Give "
            "other weights"
        )
    return next((chunks for chunks in candidates if len(chunks) >= len(weights)), candidates[-1])


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


@dataclass(frozen=True, eq=False)
class _Candidates:
    """Divisions of heads into chunks, with the amounts of the rank with the most heads, all in one array."""

    chunks: tuple[tuple[HeadChunk, ...], ...]
    loss: np.ndarray
    """by `GAIN_OF_CHUNK`, (candidates,)"""
    exists: np.ndarray
    """(chunks, candidates) bool: some candidates have fewer chunks than others"""
    num_heads: np.ndarray
    """query heads, KV tensors that arrive, KV gradients that leave, (3, chunks, candidates) int64"""

    @classmethod
    def of(cls, candidates: Sequence[tuple[HeadChunk, ...]]) -> _Candidates:
        counts = [_counts_of(chunks) for chunks in candidates]
        most = max(map(len, counts))
        exists = np.array([[number < len(chunks) for chunks in counts] for number in range(most)])
        num_heads = np.zeros((3, most, len(candidates)), dtype=np.int64)
        num_heads.T[exists.T] = np.concatenate(counts)
        loss = np.array([GAIN_OF_CHUNK ** len(chunks) for chunks in candidates])
        return cls(tuple(candidates), loss, exists, num_heads)

    def estimated_s(self, cost: HeadCost, needs_backward: bool) -> np.ndarray:
        """Seconds of each candidate, (candidates,)."""
        num_q, coming, going = self.num_heads
        total = self._pipeline_s(num_q * cost.head_s, num_q + coming, num_q, cost)
        if needs_backward:
            work_s = num_q * cost.head_s * BACKWARD_FLOPS_RATIO
            total = total + self._pipeline_s(work_s, num_q, num_q + going, cost)
        return total

    def _pipeline_s(
        self, work_s: np.ndarray, arriving: np.ndarray, leaving: np.ndarray, cost: HeadCost
    ) -> np.ndarray:
        """Seconds of pipelines, from compute seconds, arriving heads and sent heads of each chunk. A chunk
        that does not exist takes no time."""
        computing = np.where(self.exists, work_s + CALL_S * cost.num_calls, 0.0)
        return head_pipeline(computing, _message_s(arriving, cost), _message_s(leaving, cost))


@lru_cache(maxsize=64)  # plans of new masks have the same few numbers of heads
def _candidates(heads: HeadPlan, num_groups: int, parts_of_kv_head: tuple[int, ...]) -> _Candidates:
    return _Candidates.of(divided(heads, num_groups, CANDIDATE_WEIGHTS, parts_of_kv_head))


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


def _counts_of(chunks: Sequence[HeadChunk]) -> list[tuple[int, int, int]]:
    """(query heads, KV tensors that arrive, KV gradients that leave) of each chunk, on the rank with the most
    heads."""
    rank = max(range(len(chunks[0].q)), key=lambda rank: sum(len(chunk.q[rank]) for chunk in chunks))
    return [
        (len(chunk.q[rank]), 2 * len(chunk.arriving[rank]), 2 * len(chunk.leaving[rank])) for chunk in chunks
    ]


def estimated_s(chunks: Sequence[HeadChunk], cost: HeadCost, needs_backward: bool) -> float:
    """Seconds of a forward call and, if needed, its backward, on the rank with the most heads."""
    return float(_Candidates.of([tuple(chunks)]).estimated_s(cost, needs_backward)[0])


def _message_s(num_heads: np.ndarray, cost: HeadCost) -> np.ndarray:
    return np.where(num_heads, MESSAGE_S + num_heads * cost.head_bytes / INTRA_NODE_BYTES_PER_S, 0.0)


def received_head_bytes(call: CallSpec, num_tokens: int, world: int) -> float:
    """Bytes of one head of one tensor that a rank receives from the other ranks, when its tokens are spread
    evenly over `world` ranks."""
    return num_tokens * (world - 1) / world * call.head_dim * call.elem_bytes


def describe_chunks(chunks: Sequence[HeadChunk]) -> str:
    """A note: the number of query heads of the first rank in each chunk."""
    return ", ".join(str(len(chunk.q[0])) for chunk in chunks)
