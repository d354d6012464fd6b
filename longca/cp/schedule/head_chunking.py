"""The heads of each rank in chunks: one is computed while the next arrives and the last one's result goes home."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise, zip_longest

from longca.cp.partition.heads import HeadPlan, RankHeads, share_of

Weights = Sequence[int]
"""How large chunks are, one beside the other: (1, 2, 1) are a quarter of the heads, half of them, and the rest"""


@dataclass(frozen=True)
class HeadChunk:
    """A call on every rank. Ranges are by rank; those of a rank without heads in this chunk are empty."""

    heads: HeadPlan
    """what each rank computes"""
    arriving: tuple[range, ...]
    """KV heads that come with the chunk: those of its query heads but for what an earlier chunk has brought"""
    leaving: tuple[range, ...]
    """KV heads whose gradients go home after the chunk: those that no later chunk adds to"""

    @cached_property
    def q(self) -> tuple[range, ...]:
        return tuple(share.q for share in self.heads.ranks)


def cut_heads(heads: HeadPlan, weights: Weights, num_groups: int = 1, parts: int = 1) -> tuple[HeadChunk, ...] | None:
    """Chunks in the order of the heads, as near to the weights as may be, or None where heads cannot be cut so.

    A chunk has whole KV heads, or some of the query heads of one.

    Args:
        num_groups: head groups of the mask; a chunk has whole ones, or heads of one.
        parts: into how many equal ones the query heads of a KV head may be cut. What a chunk then has of them must divide their number:
            kernels let query heads share tiles.
    """
    of_ranks = [_cut(share, heads.num_q_heads // heads.num_kv_heads, weights, parts) for share in heads.ranks]
    if any(pieces is None for pieces in of_ranks):
        return None
    rows = [_arrivals(pieces) for pieces in of_ranks if pieces is not None]
    none = share_of(range(0), 1), range(0), range(0)
    columns = [tuple(zip(*of_ranks, strict=True)) for of_ranks in zip_longest(*rows, fillvalue=none)]
    chunks = tuple(HeadChunk(replace(heads, ranks=ranks), arriving, leaving) for ranks, arriving, leaving in columns)
    fit = all(chunk.heads.mask_groups(rank, num_groups) is not None for chunk in chunks for rank in range(len(heads.ranks)))
    return chunks if fit else None


def _cut(share: RankHeads, ratio: int, weights: Weights, parts: int) -> list[RankHeads] | None:
    """The chunks of one rank, of which there may be fewer or more than weights."""
    of_kv_heads = [range(max(head * ratio, share.q.start), min((head + 1) * ratio, share.q.stop)) for head in share.kv]
    borders = {edge for part in of_kv_heads for edge in (part.start, part.stop)}
    fine = {part.start + len(part) * number // parts for part in of_kv_heads for number in range(parts) if len(part) * number % parts == 0}
    found = []
    for first, behind in pairwise(_nearest(share.q, weights, sorted(borders | fine))):
        inside = [edge for edge in borders if first < edge < behind]  # where a KV head ends that another chunk has begun, or the other way
        cuts = {min(inside)} if inside and first not in borders else set()
        cuts |= {max(inside)} if inside and behind not in borders else set()
        found += pairwise([first, *sorted(cuts), behind])
    for first, behind in found:
        whole = next(part for part in of_kv_heads if first in part)
        if behind <= whole.stop and len(whole) % (behind - first):
            return None
    return [share_of(range(first, behind), ratio) for first, behind in found]


def _nearest(heads: range, weights: Weights, allowed: list[int]) -> list[int]:
    """Edges of chunks, each once: the allowed ones that are nearest to those of the weights."""
    total = sum(weights)
    wanted = (heads.start + len(heads) * weight / total for weight in accumulate(weights, initial=0))
    return sorted({min(allowed, key=lambda edge: (abs(edge - where), -edge)) for where in wanted}) if heads else []


def _arrivals(pieces: list[RankHeads]) -> list[tuple[RankHeads, range, range]]:
    """The chunks of one rank, with the KV heads that come with each, and those whose gradients leave after it."""
    ranges = [piece.kv for piece in pieces]
    return [(piece, piece.kv if before != piece.kv else piece.kv[:0], piece.kv if behind != piece.kv else piece.kv[:0])
            for piece, before, behind in zip(pieces, [None, *ranges], [*ranges[1:], None], strict=False)]
