"""A model of the time of a call on all ranks, from kernel times of steps and the traffic. It makes no
measurements.

`timeline` simulates the steps of a plan like `PlanAttention`:

- Transfers start when their buffer is free at the receiver and the KV is at the sender, one batch of a comm
  stream after another.
- A kernel starts when the previous one has finished and its KV has arrived.
- Backward, the dK and dV of a step are sent after its kernel, and the second kernel after it waits for them.

So ranks wait for each other only as far as buffers require. Not modelled: streams that share a link, and host
time. `rank_times` combines the rings of all chunks of heads with their all-to-alls. Several message speeds
are evaluated in one pass over the steps.

Shapes: P ranks of the plan (or ring), T steps, N ranks of a head group, S speeds of messages.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from longca.core import BACKWARD_FLOPS_RATIO
from longca.cp.schedule.plan import BufferSchedule, Plan, StepMessages
from longca.cp.schedule.planner import FREE, LinkSpeeds, UnitCosts, head_pipeline
from longca.cp.schedule.work_partition import received_head_bytes

if TYPE_CHECKING:
    from longca.core import CallSpec
    from longca.cp.partition.mesh import HeadChunk
    from longca.cp.schedule.work_partition import WorkPartition

DKV_STREAM = "gradients"  # the comm stream of dK and dV

StepTimes = Mapping[tuple[int, int], np.ndarray]
"""(number of a chunk, head rank) → (P, T) compute seconds of the ranks with these heads in each step; no
entry without heads"""


@dataclass(frozen=True)
class PlanTraffic:
    """All transfers of a plan on all ranks, in the order of posting."""

    kv: tuple[StepMessages, ...]
    """KV that arrives for each step"""
    dkv: tuple[StepMessages, ...]
    """dK and dV that arrive at their owner after each step"""
    computes: np.ndarray
    """True if a rank has a kernel in a step, (P, T) bool"""
    forwarded_from: tuple[int, ...]
    """`Plan.forwarded_from` of each step"""
    post_after: tuple[int, ...]
    """the step after whose kernel the messages of each step are posted; −1 for before the first kernel"""
    streams: tuple[str, ...]
    """the comm stream of each step"""

    @classmethod
    @lru_cache(maxsize=64)  # shared by both directions and by the count of bytes
    def of(cls, plan: Plan) -> PlanTraffic:
        """The traffic on GPUs, where comm streams keep their order without the host."""
        numbers = range(plan.num_steps)
        return cls(
            tuple(map(plan.messages, numbers)),
            tuple(map(plan.dkv_messages, numbers)),
            plan.step_areas > 0,
            (0, *map(plan.forwarded_from, numbers[1:])),
            tuple(BufferSchedule(plan, 0, early=True).post_after),
            ("", *map(plan.stream, numbers[1:])),
        )

    def tokens(self, *, backward: bool) -> tuple[np.ndarray, np.ndarray]:
        """(tokens whose KV or, `backward`, dK and dV is sent, number of steps with such transfers), (P, P)
        int64 each by (receiver, sender)."""
        world = len(self.computes)
        moved = np.zeros((world, world), dtype=np.int64)
        hops = np.zeros((world, world), dtype=np.int64)
        for step in self.kv:
            hops[step.receiver, step.sender] += 1
        for step in (*self.kv, *(self.dkv if backward else ())):
            moved[step.receiver, step.sender] += step.tokens
        return moved, hops


@dataclass(frozen=True)
class Timeline:
    """The times of each rank, (P,) seconds each; for several speeds of messages (S, P)."""

    end_s: np.ndarray
    """end of a rank, without the slowdown of kernels by overlapped messages"""
    compute_s: np.ndarray
    """compute time, (P,), independent of messages"""
    moving_s: np.ndarray
    """time for which its link is busy"""

    @property
    def wait_s(self) -> np.ndarray:
        """Idle time of a rank, which waits for KV or gradients, or for a peer that is not ready to send or
        receive them."""
        return self.end_s - self.compute_s

    def total_s(self, overlap_slowdown: float | np.ndarray) -> np.ndarray:
        """`end_s` plus the slowdown of kernels by overlapped messages.

        Args:
            overlap_slowdown: as in `LinkSpeeds`; (S, 1) for several speeds.
        """
        return self.end_s + overlap_slowdown * np.maximum(self.moving_s - self.wait_s, 0)


def timeline(
    traffic: PlanTraffic,
    step_s: np.ndarray,
    kv_s: np.ndarray,
    message_s: float | np.ndarray = 0.0,
    *,
    backward: bool = False,
) -> Timeline:
    """Computes the timeline of one direction of a call.

    Args:
        step_s: compute seconds of each rank in each step, (P, T). Work in a step without a kernel waits for
            no KV.
        kv_s: seconds for the KV of a token, or its dK and dV, from rank to rank, (P, P); for several speeds
            of messages (S, P, P).
        message_s: seconds of a batch in addition to its tokens; for several speeds (S,).
        backward: True if dK and dV are sent to their owners.
    """
    num_steps = step_s.shape[1]
    shape = kv_s.shape[:-1]
    batches = _Batches(kv_s, np.asarray(message_s)[..., None])
    done, arrived, home = (np.zeros((number, *shape)) for number in (num_steps + 1, num_steps, num_steps + 1))
    for number in range(num_steps):
        if number:
            ready = done[traffic.post_after[number] + 1]
            arrived[number], _ = batches.post(
                traffic.streams[number], traffic.kv[number], ready, arrived[traffic.forwarded_from[number]]
            )
        start = np.maximum(done[number], home[max(number - 2, 0)])
        start = np.where(traffic.computes[:, number], np.maximum(start, arrived[number]), start)
        done[number + 1] = start + step_s[:, number]
        if backward and number:
            _, home[number] = batches.post(DKV_STREAM, traffic.dkv[number], done[number + 1])
    return Timeline(np.maximum(done[-1], batches.end()), step_s.sum(axis=1), batches.moving_s)


class _Batches:
    """Messages of all ranks, stream by stream. Times are (P,) or (S, P), as the seconds of messages are."""

    def __init__(self, kv_s: np.ndarray, message_s: np.ndarray) -> None:
        """
        Args:
            kv_s: (P, P) or (S, P, P).
            message_s: (1,) or (S, 1).
        """
        self._kv_s = kv_s
        self._message_s = message_s
        self._free: dict[str, np.ndarray] = {}
        """for each stream, the end of each rank's last batch"""
        self.moving_s = np.zeros(kv_s.shape[:-1])

    def post(
        self, stream: str, step: StepMessages, ready: np.ndarray, there: np.ndarray | float = 0.0
    ) -> tuple[np.ndarray, np.ndarray]:
        """(arrival of all messages of a rank, end of its batch); 0 without messages.

        A batch uses the link exclusively. All its messages end together, when the busier side of each has
        finished.

        Args:
            ready: posting time of each rank's batch.
            there: time at which its data is available.
        """
        nothing = np.zeros(self.moving_s.shape)
        free = self._free.setdefault(stream, nothing)
        if not len(step.tokens):
            return nothing, nothing
        receiver = step.receiver
        sender = step.sender
        seconds = step.tokens * self._kv_s[..., receiver, sender]
        incoming, outgoing = (self._by_rank(np.add, step, side, seconds) for side in (receiver, sender))
        begins = np.maximum(ready, free)
        start = np.maximum(begins, self._latest(step, receiver, np.maximum(begins, there)[..., sender]))
        ends = (
            start
            + np.maximum(incoming, self._latest(step, receiver, outgoing[..., sender]))
            + self._message_s
        )
        arrived = nothing.copy()
        own_s = nothing.copy()
        arrived[..., receiver] = ends[..., receiver]
        over = np.maximum(arrived, self._latest(step, sender, arrived[..., receiver]))
        self._free[stream] = np.maximum(free, over)
        own_s[..., receiver] = own_s[..., sender] = self._message_s
        self.moving_s += np.maximum(incoming, outgoing) + own_s
        return arrived, over

    def end(self) -> np.ndarray:
        """The end of each rank's last batch."""
        return np.max([np.zeros_like(self.moving_s), *self._free.values()], axis=0)

    def _latest(self, step: StepMessages, side: np.ndarray, times: np.ndarray) -> np.ndarray:
        """The latest time of each rank's messages; 0 without messages. Arguments are as of `_by_rank`."""
        return self._by_rank(np.maximum, step, side, times)

    def _by_rank(
        self, reduce: np.ufunc, step: StepMessages, side: np.ndarray, times: np.ndarray
    ) -> np.ndarray:
        """Reduces the times (…, n) of messages to one for each rank, (…, P); 0 without messages.

        Args:
            side: the rank of each message, its receiver or its sender.
        """
        seconds: np.ndarray = np.zeros(self.moving_s.shape)
        if step.one_each:
            seconds[..., side] = times
        else:
            for of_ranks, of_messages in zip(
                seconds.reshape(-1, seconds.shape[-1]), times.reshape(-1, len(side)), strict=True
            ):
                reduce.at(of_ranks, side, of_messages)
        return seconds


@dataclass(frozen=True)
class RankTimes:
    """The times of all ranks of a job, (P, N) seconds each: rank p · N + n is at (p, n)."""

    compute_s: np.ndarray
    free_s: np.ndarray
    """end with free messages: later than `compute_s` if it waits for other ranks"""
    total_s: np.ndarray

    @property
    def exposed(self) -> np.ndarray:
        """The share of a rank's time due to messages; 0 for ranks without work."""
        return np.where(
            self.compute_s > 0, 1 - self.free_s / np.where(self.total_s > 0, self.total_s, 1), 0.0
        )


class WorkTimeline:
    """The timeline of one direction of a call on all ranks, for any message speed."""

    def __init__(self, work: WorkPartition, call: CallSpec, steps: StepTimes, *, backward: bool) -> None:
        """
        Args:
            steps: ranks of a head group that share one array of step times are computed once.
        """
        self._work = work
        self._call = call
        self._steps = steps
        self._backward = backward
        self._traffic: dict[range, PlanTraffic] = {}
        self._heads = np.array(
            [
                [_moving_heads(chunk, head_rank, backward) for head_rank in range(work.mesh.heads)]
                for chunk in work.chunks
            ]
        )
        """heads of single tensors that arrive with a chunk, and that are sent after it, (chunks, N, 2)"""
        self._ranks = np.arange(work.mesh.world).reshape(work.mesh.ring, work.mesh.heads)
        """of the job, (P, N): a row is a head group, a column is a ring"""

    def at(self, links: LinkSpeeds) -> RankTimes:
        """The times under one speed of messages."""
        return self.at_each([links])[0]

    def total_s(self, links: LinkSpeeds) -> np.ndarray:
        """`RankTimes.total_s` under one speed of messages."""
        return self._times([links])[1][0]

    def at_each(self, speeds: Sequence[LinkSpeeds]) -> list[RankTimes]:
        """The times at each of these speeds, in one pass."""
        compute_s, (free_s, *total_s) = self._times([FREE, *speeds])
        return [RankTimes(compute_s, free_s, total) for total in total_s]

    def _times(self, speeds: Sequence[LinkSpeeds]) -> tuple[np.ndarray, np.ndarray]:
        """(compute seconds of each rank (P, N), its end at each speed (S, P, N))."""
        mesh = self._work.mesh
        num_chunks = len(self._work.chunks)
        overlap = np.array([links.overlap_slowdown for links in speeds])[:, None]
        compute_s = np.zeros((mesh.ring, mesh.heads))
        work_s = np.zeros((num_chunks, len(speeds), mesh.ring, mesh.heads))
        known: dict[Hashable, tuple[np.ndarray, np.ndarray]] = {}
        sizes = {links.ranks_per_node for links in speeds}
        placements = [
            tuple(np.diff(self._ranks[:, head_rank] // size).astype(bool).tobytes() for size in sizes)
            for head_rank in range(mesh.heads)
        ]
        for (index, head_rank), step_s in self._steps.items():
            # rings with equal work and equal placement on nodes share a timeline
            chunk = self._work.chunks[index]
            groups = self._work.mask_groups(chunk, head_rank)
            num_kv = len(chunk.heads.ranks[head_rank].kv)
            key = id(step_s), groups, num_kv, placements[head_rank]
            if key not in known:
                line = self._line(head_rank, groups, num_kv, step_s, speeds)
                known[key] = line.compute_s, line.total_s(overlap)
            compute_s[:, head_rank] += known[key][0]
            work_s[index, :, :, head_rank] = known[key][1]
        if mesh.heads == 1:  # of one chunk, which no all-to-all brings
            return compute_s, work_s[0]
        arriving_s, leaving_s = self._all_to_all_s(speeds)
        return compute_s, head_pipeline(work_s, arriving_s, leaving_s, overlap[..., None])

    def _line(
        self, head_rank: int, groups: range, num_kv: int, step_s: np.ndarray, speeds: Sequence[LinkSpeeds]
    ) -> Timeline:
        """The timeline of one ring with one chunk of heads.

        Args:
            groups, num_kv: the mask's head groups, and the number of KV heads, of the chunk on this ring.
        """
        ranks = self._ranks[:, head_rank]
        if groups not in self._traffic:
            self._traffic[groups] = PlanTraffic.of(self._work.plan_of(groups, backward=self._backward))
        byte_s, message_s = (
            np.stack(parts)
            for parts in zip(*((links.byte_s(ranks), links.batch_s(ranks)) for links in speeds), strict=True)
        )
        kv_s = byte_s * (2 * num_kv * self._call.head_dim * self._call.elem_bytes)
        return timeline(self._traffic[groups], step_s, kv_s, message_s, backward=self._backward)

    def _all_to_all_s(self, speeds: Sequence[LinkSpeeds]) -> Iterable[np.ndarray]:
        """(transfer seconds of each chunk to each rank, transfer seconds of its results), (chunks, S, P, N)
        each. Only for head groups."""
        mesh = self._work.mesh
        ranks = self._ranks
        held = np.array(
            [
                received_head_bytes(self._call, count, mesh.heads)
                for count in self._work.plan.sharding.num_tokens.tolist()
            ]
        )
        head_s = np.zeros((len(speeds), *ranks.shape))
        message_s = np.zeros((len(speeds), mesh.ring))
        for number, links in enumerate(speeds):
            to_others = links.byte_s(ranks)
            mean_byte_s = (to_others.sum(axis=-1) - to_others.diagonal(axis1=1, axis2=2)) / (mesh.heads - 1)
            head_s[number], message_s[number] = held[:, None] * mean_byte_s, links.batch_s(ranks)
        heads = np.moveaxis(self._heads, -1, 0)[:, :, None, None]
        arriving_s, leaving_s = message_s[..., None] * (heads > 0) + heads * head_s
        return arriving_s, leaving_s


def rank_times(
    work: WorkPartition, call: CallSpec, steps: StepTimes, links: LinkSpeeds, *, backward: bool
) -> RankTimes:
    """Computes the times of one direction of one call on all ranks."""
    return WorkTimeline(work, call, steps, backward=backward).at(links)


def estimated_s(work: WorkPartition, call: CallSpec, links: LinkSpeeds, *, needs_backward: bool) -> float:
    """Seconds of a forward call, and of one backward if needed, on the slowest rank.

    Kernels are estimated at the rates of `longca.cp.schedule.planner`, which are those of an H200, so the
    result compares strategies but is not a forecast for other devices.
    """
    ways = (False, True) if needs_backward else (False,)
    times = {backward: _step_times(work, call, backward=backward) for backward in ways}
    return sum(
        float(rank_times(work, call, steps, links, backward=backward).total_s.max())
        for backward, steps in times.items()
    )


def _step_times(work: WorkPartition, call: CallSpec, *, backward: bool) -> StepTimes:
    """The step times of all ranks from rates."""
    ratio = BACKWARD_FLOPS_RATIO if backward else 1.0
    plans: dict[range, Plan] = {}
    times = {}
    for index, chunk in enumerate(work.chunks):
        for head_rank in range(work.mesh.heads):
            num_heads = len(chunk.q[head_rank])
            if num_heads:
                groups = work.mask_groups(chunk, head_rank)
                plan = plans.get(groups) or work.plan_of(groups, backward=backward)
                plans[groups] = plan
                costs = UnitCosts.of(
                    num_heads, len(chunk.heads.ranks[head_rank].kv), call.head_dim, num_groups=len(groups)
                )
                pairs = plan.step_areas + costs.end_pairs * plan.step_band_rows
                times[index, head_rank] = pairs * costs.pair_s * ratio + (plan.step_areas > 0) * costs.call_s
    return times


def _moving_heads(chunk: HeadChunk, head_rank: int, backward: bool) -> tuple[int, int]:
    """(heads of single tensors that arrive with a chunk, and that are sent after it): q, k, v and out, or
    dout, dq, dk and dv."""
    num_q = len(chunk.q[head_rank])
    if backward:
        return num_q, num_q + 2 * len(chunk.leaving[head_rank])
    return num_q + 2 * len(chunk.arriving[head_rank]), num_q
