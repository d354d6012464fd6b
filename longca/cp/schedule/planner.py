"""The planner: makes plans, chooses among shardings by a rough estimate of their cost, and caches recent plans.

The estimate counts visible pairs at the rate of a kernel, KV at the rate of a link, a fixed time for each
kernel call, and hidden pairs at row ends. Kernels compute whole tiles, so each row of each band has some hidden pairs for
every rank whose keys it sees: this is the cost of the balance of stripes and small chunks. Merging is free,
since `band` merges in its epilogue.

Shapes: P ranks, T steps.
"""  # noqa: E501

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from longca.cp.partition.blocks import BlockPartition
from longca.cp.partition.chunked_partition import ChunkedPartition, partition_jointly
from longca.cp.partition.mask_partition import MaskPartition, PartitionStack, Step, StripedPartition
from longca.cp.partition.mesh import RANKS_PER_NODE
from longca.cp.partition.sharding import (
    CANDIDATES,
    ChunkedSharding,
    Sharding,
    StripedSharding,
    make_sharding,
    worth_trying,
)
from longca.cp.schedule.plan import Plan, PlanStack, Schedule
from longca.kernels import UNIT_ROWS
from longca.masks import Mask
from longca.masks.band import Q0, Q1

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

# Attention forward, bf16, on an H200. With CALL_S and END_PAIRS an estimate is 7 % above the times that
# `benchmarks.cp.shardings` makes, give or take 2 %, over seven masks on 2 and 4 ranks.
FLOPS_PER_S = 650e12
END_PAIRS = 96  # hidden pairs at the end of each row of a band
# of a kernel call in addition to its pairs: host time, and idle multiprocessors at the start and in the tail
# wave
CALL_S = 100e-6
INTRA_NODE_BYTES_PER_S = 200e9  # one way, NCCL between two GPUs of an H200 host: 222 to 226 from 32 MB on
MESSAGE_S = 20e-6  # of a batch of messages in addition to its bytes
# slowdown of kernels by overlapped messages, as a share of the messages' time: 7 % of 4.5 ms for 128 MB on an
# H200
OVERLAP_SLOWDOWN = 0.3


@dataclass(frozen=True)
class UnitCosts:
    """The unit costs of plan estimates."""

    pair_s: float
    """seconds for a visible pair of one head group of the mask, for all its heads"""
    kv_s: float
    """seconds to move the key and value of one token, for all KV heads"""
    call_s: float = 0.0
    """seconds of a kernel call in addition to its pairs"""
    end_pairs: int = END_PAIRS
    """cost of a row end, in hidden pairs"""

    @classmethod
    def of(
        cls,
        num_q_heads: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        num_groups: int = 1,
        elem_bytes: int = 2,
        flops_per_s: float = FLOPS_PER_S,
        bytes_per_s: float = INTRA_NODE_BYTES_PER_S,
    ) -> UnitCosts:
        """The unit costs of a forward call. Backward has 2.5 times the work per pair and about 2 to 3 times
        the bytes, so the choice would be the same."""
        return cls(
            4 * num_q_heads / num_groups * head_dim / flops_per_s,
            2 * num_kv_heads * head_dim * elem_bytes / bytes_per_s,
            CALL_S,
        )


@dataclass(frozen=True)
class PlanCost:
    """The estimated cost of a plan, in seconds."""

    compute_s: float
    """time of the rank with the most computation, with all KV available"""
    transfer_s: float
    """time of the rank with the most transfers, without overlap"""
    overlapped_s: float
    """time with transfers overlapped with kernels, without their slowdown of kernels"""

    @property
    def total_s(self) -> float:
        """The time that decides among plans: `overlapped_s` plus the slowdown of kernels by overlapped
        transfers."""
        return self.overlapped_s + OVERLAP_SLOWDOWN * max(
            self.transfer_s - (self.overlapped_s - self.compute_s), 0
        )


def cost_of(plan: Plan, costs: UnitCosts) -> PlanCost:
    """Estimates a plan. The KV of step n + 1 is transferred during step n."""
    return costs_of(PlanStack.of(plan), costs)[0]


def costs_of(plans: PlanStack, costs: UnitCosts) -> list[PlanCost]:
    """Estimates plans, all in one pass over the steps."""
    areas = plans.step_areas
    compute = (areas + costs.end_pairs * plans.step_band_rows) * costs.pair_s + (areas > 0) * costs.call_s
    transfer = np.maximum(plans.received_kv, plans.sent_kv) * costs.kv_s
    first = plans[0]
    total = (
        _ring_s(first, compute, transfer, plans.received_kv > 0)
        if first.forwards_kv
        else _gather_s(compute, transfer)
    )
    slowest = (compute.sum(axis=2).max(axis=1), transfer.sum(axis=2).max(axis=1), total)
    return [PlanCost(*one) for one in zip(*(seconds.tolist() for seconds in slowest), strict=True)]


def _gather_s(compute: np.ndarray, transfer: np.ndarray) -> np.ndarray:
    """Seconds without waits between ranks: a rank proceeds when a step has finished and the KV of the next
    has arrived."""
    return np.maximum(compute, np.pad(transfer[..., 1:], ((0, 0), (0, 0), (0, 1)))).sum(axis=2).max(axis=1)


def _ring_s(plan: Plan, compute: np.ndarray, transfer: np.ndarray, moves: np.ndarray) -> np.ndarray:
    """Seconds with forwarded KV.

    A transfer starts when its KV is at the sender, its stream is free, and the receiver has released the
    buffer. So a rank waits for slower ones only as far as two buffers require.
    """
    # (T, plans, P)
    work, messages, moving = (
        np.ascontiguousarray(each.transpose(2, 0, 1)) for each in (compute, transfer, moves)
    )
    nothing: np.ndarray = np.zeros_like(work[0])
    done = [nothing, work[0]]
    there = [nothing]
    streams = dict[str, np.ndarray]()
    for number in range(1, plan.num_steps):
        senders = plan.senders(number)
        free = streams.get(plan.stream(number), nothing)
        ready = np.maximum(free, done[number - 1]) if number > 2 else free
        begins = np.maximum(ready, np.maximum(ready, there[plan.forwarded_from(number)])[:, senders])
        there.append(np.where(moving[number], begins + messages[number], 0))
        free = streams[plan.stream(number)] = np.maximum(free, there[-1])
        free[:, senders] = np.maximum(free[:, senders], there[-1])
        done.append(np.maximum(done[-1], there[-1]) + work[number])
    return done[-1].max(axis=1)


def head_pipeline(
    work_s: ArrayLike,
    arriving_s: ArrayLike,
    leaving_s: ArrayLike,
    overlap_slowdown: float | np.ndarray = OVERLAP_SLOWDOWN,
) -> np.ndarray:
    """Seconds of a rank with chunks of heads: each chunk arrives, is computed, and its results are sent back.

    All messages share one link, on which all chunks arrive before the first results are sent:

        link       in 0 │ in 1 │ in 2 │          out 0 │         out 1 │         out 2
        kernels         │ chunk 0            │ chunk 1        │ chunk 2        │

    Args:
        work_s, arriving_s, leaving_s: of each chunk, (chunks, …), of as many ranks as there are elements in
            the other axes.
    """
    work, arriving, leaving = (np.asarray(seconds) for seconds in (work_s, arriving_s, leaving_s))
    now = np.zeros(work.shape[1:])
    arrived = np.cumsum(arriving, axis=0)
    link = arrived[-1]
    for there, seconds, message_s in zip(arrived, work, leaving, strict=True):
        now = np.maximum(now, there) + seconds
        link = np.maximum(link, now) + message_s
    hidden = sum(arriving) + sum(leaving) - (link - sum(work))
    return link + overlap_slowdown * hidden


INTER_NODE_BYTES_PER_S = 40e9  # an assumption, not measured: one adapter of 400 Gb/s for each GPU, at 80 %


@dataclass(frozen=True)
class LinkSpeeds:
    """The speed of messages. Each rank has one link in each direction."""

    intra_node_bytes_per_s: float = INTRA_NODE_BYTES_PER_S
    inter_node_bytes_per_s: float = INTER_NODE_BYTES_PER_S
    message_s: float = MESSAGE_S
    """seconds of a batch of messages in addition to its bytes"""
    inter_node_message_s: float | None = None
    """the same if some of its ranks are on different nodes; None: the same value"""
    overlap_slowdown: float = OVERLAP_SLOWDOWN
    """slowdown of kernels by overlapped messages, as a share of the messages' time"""
    ranks_per_node: int = RANKS_PER_NODE
    packs: bool = False
    """True if sent rows of a gather are packed first, for a collective; copy engines send them in place"""

    def byte_s(self, ranks: Sequence[int] | np.ndarray) -> np.ndarray:
        """Seconds per byte between each pair of these ranks of the job, (…, P) → (…, P, P). Ranks fill node
        after node."""
        node = np.asarray(ranks) // self.ranks_per_node
        return np.where(
            node[..., None] == node[..., None, :],
            1 / self.intra_node_bytes_per_s,
            1 / self.inter_node_bytes_per_s,
        )

    def batch_s(self, ranks: Sequence[int] | np.ndarray) -> np.ndarray:
        """Seconds of a batch of messages among these ranks in addition to its bytes, (…, P) → (…)."""
        node = np.asarray(ranks) // self.ranks_per_node
        between_s = self.message_s if self.inter_node_message_s is None else self.inter_node_message_s
        return np.where((node == node[..., :1]).all(axis=-1), self.message_s, between_s)


FREE = LinkSpeeds(
    intra_node_bytes_per_s=np.inf, inter_node_bytes_per_s=np.inf, message_s=0.0
)  # messages that take no time


MOST_WORLDS = 2  # numbers of ranks with kept partitions
BEST = "best"  # instead of a sharding's name: the cheapest of the candidates


def partition_mask(mask: Mask, sharding: Sharding) -> MaskPartition:
    """Partitions a mask of S queries and S keys by a sharding of S tokens.

    Raises:
        ValueError: the mask has another number of queries or keys.
    """
    if (mask.seqlen_q, mask.seqlen_k) != (sharding.seqlen, sharding.seqlen):
        raise ValueError(f"a placement of {sharding.seqlen} tokens cannot cut {mask}")
    if mask.grid is not None:
        return BlockPartition(mask, sharding)
    if isinstance(sharding, StripedSharding):
        return StripedPartition(mask, sharding)
    assert isinstance(sharding, ChunkedSharding)
    return ChunkedPartition(mask, sharding)


def step_masks(plan: Plan, rank: int, *, merging: bool) -> dict[int, tuple[int, int, Mask]]:
    """`active_rows` of each step of a rank, by the number of the step."""
    return {step.number: active_rows(step, merging=merging) for step in plan.steps(rank)}


def active_rows(step: Step, *, merging: bool = False) -> tuple[int, int, Mask]:
    """(start, end) of the queries that see keys of a step, and the step's mask for these queries: the inputs
    of its kernel. They are cached in the partition, for both directions and for other schedules with the same
    step.

    Args:
        merging: for a kernel that merges: starts and ends are whole units of `UNIT_ROWS`, and a mask of
            blocks keeps all queries.
    """
    kept = step.partition.kept
    key = ("active rows", step.rank, step.keys, merging)
    if key not in kept:
        start, end = _active_range(step.mask, merging=merging)
        whole = start == 0 and end == step.mask.seqlen_q
        kept[key] = (
            start, end, step.mask if whole else step.mask.crop((start, end), (0, step.mask.seqlen_k))
        )  # fmt: skip
    return kept[key]


def _active_range(mask: Mask, *, merging: bool) -> tuple[int, int]:
    if mask.grid is not None:
        if merging:
            return 0, mask.seqlen_q
        rows = [np.flatnonzero(visible.any(axis=1)) for visible in mask.grid.visible]
        seen = [
            (int(bounds[of_group[0]]), int(bounds[of_group[-1] + 1]))
            for bounds, of_group in zip(mask.grid.q_bounds, rows, strict=True)
            if len(of_group)
        ]
        return min(start for start, _ in seen), max(end for _, end in seen)
    bands = np.concatenate(mask.groups)
    unit = UNIT_ROWS if merging else 1
    start = int(bands[:, Q0].min()) // unit * unit
    return start, min(-(-int(bands[:, Q1].max()) // unit) * unit, mask.seqlen_q)


@dataclass(frozen=True)
class ScoredPlan:
    """A plan with its estimated cost."""

    plan: Plan
    cost: PlanCost


class Partitions:
    """The partitions of the last mask for the last few numbers of ranks: strategies try several schedules on
    each, and several strategies have the same. 40 MB for 96 ranks and 1000 documents."""

    def __init__(self) -> None:
        self._digest = ""
        self._of_world: OrderedDict[
            int, tuple[dict[str, MaskPartition], dict[tuple[str, ...], PartitionStack]]
        ] = OrderedDict()

    def of(self, mask: Mask, world: int, names: Sequence[str]) -> PartitionStack:
        """The partitions on the shardings of these names, in their order."""
        if self._digest != mask.digest:
            self._digest = mask.digest
            self._of_world.clear()
        known, stacks = self._of_world.setdefault(world, ({}, {}))
        self._of_world.move_to_end(world)
        if len(self._of_world) > MOST_WORLDS:
            self._of_world.popitem(last=False)
        missing = [name for name in names if name not in known]
        shardings = [make_sharding(name, mask, world) for name in missing]
        chunked = [
            sharding for sharding in shardings if isinstance(sharding, ChunkedSharding) and mask.grid is None
        ]
        joint = {id(part.sharding): part for part in (partition_jointly(mask, chunked) if chunked else ())}
        for name, sharding in zip(missing, shardings, strict=True):
            known[name] = joint.get(id(sharding)) or partition_mask(mask, sharding)
        names = tuple(names)
        if names not in stacks:
            stacks[names] = PartitionStack([known[name] for name in names])
        return stacks[names]


class Planner:
    """Makes plans and caches recent ones by the digest of their mask, so that equal masks share one plan."""

    def __init__(
        self,
        costs: UnitCosts,
        candidates: Sequence[str] = CANDIDATES,
        kept: int = 32,
        partitions: Partitions | None = None,
    ) -> None:
        """
        Args:
            costs: unit costs for the comparison of plans.
            candidates: names of candidate shardings; the first of equally cheap ones is chosen.
            kept: number of cached plans.
            partitions: those of another planner, to be shared.
        """
        self.costs = costs
        self.candidates = tuple(candidates)
        self._max_kept = kept
        self._kept: OrderedDict[tuple, ScoredPlan] = OrderedDict()
        self.partitions = partitions or Partitions()

    def plan(self, mask: Mask, world: int, schedule: Schedule, sharding: str = BEST) -> Plan:
        """The new or cached plan of a mask.

        Args:
            world: ranks that split the sequence; in a hybrid, those of one ring.
            sharding: a name that `make_sharding` knows, or BEST.
        """
        return self.choice(mask, world, schedule, sharding).plan

    def choice(self, mask: Mask, world: int, schedule: Schedule, sharding: str = BEST) -> ScoredPlan:
        """`plan`, with its estimated cost."""
        key = mask.digest, world, schedule, sharding
        if key not in self._kept:
            plans, costs = self._scored(mask, world, schedule, [sharding] if sharding != BEST else None)
            best = min(range(len(plans)), key=lambda number: costs[number].total_s)
            self._kept[key] = ScoredPlan(plans[best], costs[best])
            if len(self._kept) > self._max_kept:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    def choices(
        self, mask: Mask, world: int, schedule: Schedule, names: Sequence[str] | None = None
    ) -> list[ScoredPlan]:
        """The plans on the shardings of these names, cheapest first. Default: all promising candidates."""
        plans, costs = self._scored(mask, world, schedule, names)
        return sorted(map(ScoredPlan, plans, costs), key=lambda choice: choice.cost.total_s)

    def _scored(
        self, mask: Mask, world: int, schedule: Schedule, names: Sequence[str] | None
    ) -> tuple[PlanStack, list[PlanCost]]:
        if names is None:
            names = [name for name in self.candidates if worth_trying(name, mask)] or self.candidates
        plans = schedule.plans_of(self.partitions.of(mask, world, names))
        return plans, costs_of(plans, self.costs)

    def choices_on(self, mask: Mask, sharding: Sharding, schedules: Sequence[Schedule]) -> list[ScoredPlan]:
        """The plans of these schedules on a given sharding, in their order. They are not cached."""
        partition = PartitionStack([partition_mask(mask, sharding)])
        plans = (schedule.plans_of(partition)[0] for schedule in schedules)
        return [ScoredPlan(plan, cost_of(plan, self.costs)) for plan in plans]
