"""Into which chunks the heads of ranks are cut: the fewest of those that promise to be quickest.

More chunks hide more of what moves, and each is another kernel call. A timeline of one rank is made for each of some ways to cut, from
what is known before: heads, pairs, bytes and the rates of `longca.cp.schedule.cost`. All ranks make the same one, so they cut alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from longca.core.cell import BACKWARD_FLOPS_RATIO
from longca.cp.partition.heads import HeadPlan
from longca.cp.schedule.cost import BYTES_PER_S, CALL_S
from longca.cp.schedule.head_chunking import HeadChunk, Weights, cut_heads
from longca.cp.schedule.time_model import MESSAGE_S, head_pipeline

if TYPE_CHECKING:
    from longca.kernels.contract import Problem

WAYS: tuple[Weights, ...] = ((1,), (1, 1), (1, 2, 1), (1, 1, 1, 1), (1, 6, 1), (1, 3, 3, 1))
"""The first chunk and the last are what nothing hides: small ones beside large ones hide most."""
PARTS = (1, 2, 4)  # into which a KV head may be cut
PREFERENCE = 1.005  # a chunk more must promise so much


@dataclass(frozen=True)
class HeadCost:
    """What heads cost the rank that has most of them, forward."""

    head_s: float
    """to compute a query head"""
    head_bytes: float
    """a head of one tensor from those who hold its tokens, or to them"""
    num_calls: int = 1
    """kernel calls for each chunk"""


def chunks_of(heads: HeadPlan, num_groups: int, load: HeadCost, needs_backward: bool, weights: Weights | None = None
              ) -> tuple[HeadChunk, ...]:
    """Those that are quickest in a forward call, or with `needs_backward` in one of each direction.

    Args:
        num_groups: head groups of the mask.
        weights: of the chunks that it shall be instead, as near as heads can be cut.

    Raises:
        ValueError: heads cannot be cut by these weights.
    """
    all_ways = [chunks for way in (WAYS if weights is None else [weights]) for parts in PARTS
                if (chunks := cut_heads(heads, way, num_groups, parts)) is not None]
    if weights is None:
        return min(all_ways, key=lambda chunks: seconds(chunks, load, needs_backward) * PREFERENCE ** len(chunks))
    if not all_ways:
        raise ValueError(f"heads of {len(heads.ranks)} ranks cannot be cut as {':'.join(map(str, weights))}: chunks would have no "
                         "whole head groups of the mask, or not divide the query heads of a KV head. Give other weights")
    return next((chunks for chunks in all_ways if len(chunks) >= len(weights)), all_ways[-1])


def seconds(chunks: Sequence[HeadChunk], load: HeadCost, needs_backward: bool) -> float:
    """Of a forward call and, if there is one, its backward."""
    rank = max(range(len(chunks[0].q)), key=lambda rank: sum(len(chunk.q[rank]) for chunk in chunks))
    counts = [(len(chunk.q[rank]), 2 * len(chunk.arriving[rank]), 2 * len(chunk.leaving[rank])) for chunk in chunks]
    total = _timeline(((num_q * load.head_s, num_q + coming, num_q) for num_q, coming, _ in counts), load)
    if needs_backward:
        total += _timeline(((num_q * load.head_s * BACKWARD_FLOPS_RATIO, num_q, num_q + going) for num_q, _, going in counts), load)
    return total


def bytes_of_head(problem: Problem, num_tokens: int, world: int) -> float:
    """Of so many tokens that are on so many ranks, what one of these receives of a head of one tensor."""
    return num_tokens * (world - 1) / world * problem.head_dim * problem.dtype.itemsize


def _timeline(chunks: Iterable[tuple[float, int, int]], load: HeadCost) -> float:
    """From (seconds to compute, heads that arrive, heads that go home) of each chunk."""
    computing, arriving, going = zip(*((work_s + CALL_S * load.num_calls, _message_s(comes, load), _message_s(goes, load))
                                       for work_s, comes, goes in chunks), strict=True)
    return head_pipeline(computing, arriving, going)


def _message_s(num_heads: int, load: HeadCost) -> float:
    return MESSAGE_S + num_heads * load.head_bytes / BYTES_PER_S if num_heads else 0.0


def described(chunks: Sequence[HeadChunk]) -> str:
    """For notes: how many query heads the first rank has in each."""
    return ", ".join(str(len(chunk.q[0])) for chunk in chunks)
