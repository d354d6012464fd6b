"""The work partition of one problem: the mesh of ranks, the plan of a ring, and the chunks of heads. It is
made before ranks start.

One chunk of heads is computed while the next arrives and the previous results are sent back. More chunks
overlap more of the messages, but each is another kernel call. For each of several divisions, the timeline of
one rank is estimated from heads, pairs, bytes and the unit costs of `longca.cp.schedule.planner`; the fastest
is chosen, with few chunks preferred. All ranks estimate the same rank, so their choices agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np

from longca.core import BACKWARD_FLOPS_RATIO
from longca.cp.partition.mask_partition import PartitionStack
from longca.cp.partition.mesh import Mesh, divided, plan_heads
from longca.cp.partition.sharding import make_sharding
from longca.cp.schedule.planner import (
    CALL_S,
    INTRA_NODE_BYTES_PER_S,
    MESSAGE_S,
    UnitCosts,
    cost_of,
    head_pipeline,
)
from longca.cp.schedule.ring_and_gather import Gather

if TYPE_CHECKING:
    from longca.core import CallSpec
    from longca.cp.partition.mesh import ChunkWeights, HeadChunk, HeadPlan
    from longca.cp.schedule.plan import Plan
    from longca.masks import Mask

CANDIDATE_WEIGHTS: tuple[ChunkWeights, ...] = ((1,), (1, 1), (1, 2, 1), (1, 1, 1, 1), (1, 6, 1), (1, 3, 3, 1))
"""The arrival of the first chunk and the results of the last one cannot overlap, so small chunks at both ends
are best."""
PARTS_OF_KV_HEAD = (1, 2, 4)
"""The numbers of parts into which the query heads of a KV head may be divided."""
GAIN_OF_CHUNK = 1.005
"""Least estimated speed-up of each additional chunk."""


@dataclass(frozen=True)
class WorkPartition:
    """The work of all ranks. Each rank computes the same one without communication."""

    mesh: Mesh
    plan: Plan
    """of the ranks of one ring, for all heads"""
    chunks: tuple[HeadChunk, ...]
    """chunks of the heads of a head group; a single chunk without head groups"""
    backward_at_once: bool = False
    """True if each rank has all keys in one call of the kernel in backward (`keys_at_once`)"""

    @property
    def heads_only(self) -> bool:
        """True if ranks split only heads: each has all keys of its heads, so that no results are merged."""
        return self.mesh.ring == 1 and self.mesh.heads > 1

    @property
    def num_idle(self) -> int:
        """Ranks that compute nothing: those without tokens of a ring, and those without heads of a group."""
        heads = sum(any(queries) for queries in zip(*(chunk.q for chunk in self.chunks), strict=True))
        tokens = int((self.plan.sharding.num_tokens > 0).sum())
        return self.mesh.ring * self.mesh.heads - tokens * heads

    def mask_groups(self, chunk: HeadChunk, head_rank: int) -> range:
        """The mask's head groups for the (non-empty) heads of a rank in a chunk.

        Args:
            head_rank: the rank's index in its head group.
        """
        groups = chunk.heads.mask_groups(head_rank, self.plan.partition.mask.num_groups)
        assert groups is not None, "`supports` has been asked"
        return groups

    def plan_of(self, groups: range, *, backward: bool = False) -> Plan:
        """The plan of some head groups of the mask in one direction. The sharding is the same for all groups.
        What is at once is planned as a gather before the only kernel."""
        mask = self.plan.partition.mask
        if backward and self.backward_at_once:
            assert len(groups) == mask.num_groups, "heads are not divided"
            return self._plan_at_once
        return (
            self.plan
            if len(groups) == mask.num_groups
            else self.plan.of_mask(mask.select_groups(groups.start, groups.stop))
        )

    @cached_property
    def _plan_at_once(self) -> Plan:
        return Gather(0).plans_of(PartitionStack([self.plan.partition]))[0]


def partition_heads(
    mask: Mask, call: CallSpec, world: int, weights: ChunkWeights | None = None
) -> WorkPartition:
    """Splits the heads among all ranks: each rank has the whole sequence of its heads.

    Args:
        weights: weights of the chunks, instead of the estimated fastest ones.

    Raises:
        ValueError: heads cannot be divided by these weights.
    """
    costs = UnitCosts.of(1, 1, call.head_dim, num_groups=mask.num_groups)
    whole = Gather().plan(mask, make_sharding("contiguous", mask, 1))
    cost = HeadCost(cost_of(whole, costs).compute_s, received_head_bytes(call, mask.seqlen_q, world))
    heads = plan_heads(call.num_q_heads, call.num_kv_heads, world)
    return WorkPartition(
        Mesh(1, world), whole, choose_chunks(heads, mask.num_groups, cost, call.direction == "bwd", weights)
    )


def partition_on(
    mesh: Mesh, plan: Plan, call: CallSpec, weights: ChunkWeights | None = None
) -> WorkPartition:
    """Divides the heads of a head group into chunks, for a given plan of the rings.

    Args:
        weights: weights of the chunks, instead of the estimated fastest ones. Ignored without head groups.

    Raises:
        ValueError: heads cannot be divided by these weights.
    """
    mask = plan.partition.mask
    heads = plan_heads(call.num_q_heads, call.num_kv_heads, mesh.heads)
    if mesh.heads == 1:
        (whole,) = divided(heads, mask.num_groups, [(1,)], (1,))
        return WorkPartition(mesh, plan, whole)
    costs = replace(unit_costs(call, mesh, mask), call_s=0.0)
    held = received_head_bytes(call, mask.seqlen_q // mesh.ring, mesh.heads)
    # over the whole ring
    cost = HeadCost(cost_of(plan, costs).total_s / (call.num_q_heads // mesh.heads), held, plan.num_steps)
    return WorkPartition(
        mesh, plan, choose_chunks(heads, mask.num_groups, cost, call.direction == "bwd", weights)
    )


def unit_costs(call: CallSpec, mesh: Mesh, mask: Mask) -> UnitCosts:
    """The unit costs of a forward call for the heads of a rank."""
    return UnitCosts.of(
        call.num_q_heads // mesh.heads,
        call.num_kv_heads // mesh.heads,
        call.head_dim,
        num_groups=mask.num_groups,
        elem_bytes=call.elem_bytes,
    )


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
