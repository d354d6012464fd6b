"""The forecast of one call of a work partition: time, bytes and memory of every rank, from fitted kernels and
a time line.

    kernels     of each step, at full clock: `longca.predict`, from the step's area and the ends of its rows
    passes      elementwise work beside kernels, by its bytes: sums in float32, packing of heads
    clock slowdown of long calls, applied to all of it
    messages    the time line of `longca.cp.schedule.timeline`

The tiles of steps are not counted individually, since there are up to P² steps. Each row of a band ends in a
partial tile at any position, so the tiles of the whole mask, counted once, give the cost of a row end, and
steps share it by their rows (`Plan.step_band_rows`). The work items of a step are assumed to be equally long.

Shapes: P ranks of a ring, N ranks of a head group, T steps.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from longca.core.hardware import load_hardware
from longca.cp.kernel_times import DeviceModel, kernels_s
from longca.cp.schedule.plan import BufferSchedule
from longca.cp.schedule.planner import LinkSpeeds
from longca.cp.schedule.timeline import PlanTraffic, WorkTimeline
from longca.predict.call import whole_statistics
from longca.predict.fitted import load_fitted
from longca.predict.kernel import clock_slowdown

if TYPE_CHECKING:
    from longca.core.call import CallSpec, Messages
    from longca.core.hardware import Network
    from longca.cp.schedule.plan import Plan
    from longca.cp.schedule.timeline import RankTimes
    from longca.cp.schedule.work_partition import HeadChunk, WorkPartition
    from longca.kernels.contract import Kernel

PROFILES: dict[Messages, str] = {
    "nccl": "h200-nccl",
    "symmetric": "h200-copy-engines",
}  # of messages, in config/hardware.yaml
USUAL_BANDWIDTH_GB_S = 4800.0  # of an H200's memory, the default without config/hardware.yaml
FITTED_ELEM_BYTES = 2
SUM_BYTES = 4  # of an element of a float32 sum
# share of the memory bandwidth in elementwise passes: `python -m benchmarks.predict.links`
PASS_EFFICIENCY = 0.85


@dataclass(frozen=True)
class CallForecast:
    """One direction of one call."""

    times: RankTimes
    """without and with messages"""
    slowdown: float
    """slowdown by the clock for a call of this length"""
    num_calls: int
    """largest number of kernel calls of a rank"""
    waste: float
    """the hidden share of computed pairs in the tiles of the whole mask"""
    sent_bytes: float
    """of the rank that sends most"""
    inter_node_bytes: float
    """largest number of bytes that a rank sends to other nodes"""
    memory_bytes: float
    """largest memory of a rank: its shards, gradients, buffers and sums"""

    @property
    def seconds(self) -> float:
        return float(self.times.total_s.max())

    @property
    def imbalance(self) -> float:
        """The mean share of time that ranks wait for the rank with the most work."""
        most = float(self.times.compute_s.max())
        return round(max(1 - float(self.times.compute_s.mean()) / most, 0.0), 6) if most else 0.0

    @property
    def straggler(self) -> float:
        """The delay of the slowest rank relative to the median rank."""
        middle = float(np.median(self.times.total_s))
        return round(self.seconds / middle - 1, 6) if middle else 0.0

    @property
    def exposed(self) -> float:
        """The share of the slowest rank's time due to messages."""
        return float(self.times.exposed.flat[int(self.times.total_s.argmax())])


def links_of(network: Network) -> LinkSpeeds:
    """The speeds of a profile of `config/hardware.yaml`."""
    return LinkSpeeds(
        network.intra_gb_s.value * 1e9,
        network.inter_gb_s.value * 1e9,
        network.intra_us.value * 1e-6,
        network.inter_us.value * 1e-6,
        network.overlap.value,
        network.ranks_per_node,
        "copy-engines" not in network.name,
    )


@dataclass(frozen=True, eq=False)
class _ShareTimes:
    """The work of the ranks with the same heads of a chunk."""

    seconds: np.ndarray
    """of each step at full clock, (P, T)"""
    throttle: np.ndarray | float
    """the same for each step, or for all"""
    num_calls: np.ndarray
    """kernel calls of each rank, (P,)"""


class WorkForecast:
    """The forecast of a call in the direction of its specification, for any message speed."""

    def __init__(self, work: WorkPartition, call: CallSpec, device: DeviceModel, *, packs: bool) -> None:
        """
        Args:
            packs: as in `LinkSpeeds`.
        """
        self._work, self._call, self._device, self._packs = work, call, device, packs
        self._bytes: dict[int, tuple[float, float]] = {}
        shares = self._shares()
        busy, throttled, counts = (np.zeros((work.mesh.ring, work.mesh.heads)) for _ in range(3))
        for (_, head_rank), share in shares.items():
            busy[:, head_rank] += share.seconds.sum(axis=1)
            throttled[:, head_rank] += (share.seconds * share.throttle).sum(axis=1)
            counts[:, head_rank] += share.num_calls
        most = np.unravel_index(int(busy.argmax()), busy.shape)
        self.slowdown = float(clock_slowdown(busy[most], throttled[most] / busy[most] if busy[most] else 0.0))
        """by the clock"""
        self.num_calls = int(counts.max())
        """of kernels, for the rank with the most"""
        slower = {id(share): share.seconds * self.slowdown for share in shares.values()}
        self._line = WorkTimeline(
            work,
            call,
            {key: slower[id(share)] for key, share in shares.items()},
            backward=call.direction == "bwd",
        )

    def times(self, links: LinkSpeeds) -> RankTimes:
        """The times of all ranks."""
        return self._line.at(links)

    def at(self, links: LinkSpeeds) -> CallForecast:
        """The whole forecast."""
        return self.at_each([links])[0]

    def at_each(self, speeds: Sequence[LinkSpeeds]) -> list[CallForecast]:
        """The forecasts under each of these speeds, in one pass over the steps."""
        return [
            CallForecast(
                times,
                self.slowdown,
                self.num_calls,
                self._waste,
                *self._bytes_sent(links.ranks_per_node),
                self._memory,
            )
            for links, times in zip(speeds, self._line.at_each(speeds), strict=True)
        ]

    def _bytes_sent(self, ranks_per_node: int) -> tuple[float, float]:
        if ranks_per_node not in self._bytes:
            self._bytes[ranks_per_node] = _sent_bytes(self._work, self._call, ranks_per_node)
        return self._bytes[ranks_per_node]

    @cached_property
    def _waste(self) -> float:
        heads_per_kv = self._call.num_q_heads // self._call.num_kv_heads
        return whole_statistics(
            self._work.plan.partition.mask, self._device.kernel.usual.shape, heads_per_kv
        ).waste

    @cached_property
    def _memory(self) -> float:
        return memory_bytes(self._work, self._call)

    def _shares(self) -> dict[tuple[int, int], _ShareTimes]:
        """The work of each chunk of each rank of a head group; equal work is shared."""
        work, found, known = self._work, dict[tuple[int, int], _ShareTimes](), dict[Hashable, _ShareTimes]()
        plans: dict[range, Plan] = {}
        for place, chunk in enumerate(work.chunks):
            for head_rank, share in enumerate(chunk.heads.ranks):
                if not share.q:
                    continue
                groups = work.mask_groups(chunk, head_rank)
                if groups not in plans:
                    plans[groups] = work.plan_of(groups)
                key = groups, len(share.q), len(share.kv), len(share.local_kv)
                if key not in known:
                    known[key] = self._share_times(plans[groups], chunk, head_rank)
                found[place, head_rank] = known[key]
        return found

    def _share_times(self, plan: Plan, chunk: HeadChunk, head_rank: int) -> _ShareTimes:
        share, call, device = chunk.heads.ranks[head_rank], self._call, self._device
        kernels, throttle = kernels_s(plan, len(share.q), len(share.local_kv), call, device)
        found = kernels + _passes_s(plan, share.q, share.kv, call, device, packs=self._packs)
        if self._work.mesh.heads > 1:
            found[:, 0] += _packing_s(self._work, chunk, head_rank, call, device)
        return _ShareTimes(found, throttle, (plan.step_areas > 0).sum(axis=1))


def forecast(work: WorkPartition, call: CallSpec, device: DeviceModel, links: LinkSpeeds) -> CallForecast:
    """Forecasts a call in the direction of its specification."""
    return WorkForecast(work, call, device, packs=links.packs).at(links)


class Forecaster:
    """Seconds of work partitions on this machine's GPUs, for the choice of a strategy, from kernels fitted on
    an H200."""

    def __init__(self, kernel: Kernel, messages: Messages, ranks_per_node: int) -> None:
        """
        Args:
            ranks_per_node: GPUs of a node.
        """
        hardware = load_hardware()
        profile = next((one for one in hardware.networks if one.name == PROFILES[messages]), None)
        links = LinkSpeeds() if profile is None else links_of(profile)
        self._links, self._kernel, self._fitted = (
            replace(links, ranks_per_node=ranks_per_node),
            kernel,
            load_fitted(),
        )
        self._memory_bytes_per_s = (
            (hardware.bandwidth_gb_s(self._fitted.device) or USUAL_BANDWIDTH_GB_S) * 1e9 * PASS_EFFICIENCY
        )

    def seconds(self, work: WorkPartition, call: CallSpec) -> float | None:
        """Seconds of a forward call and, if required, its backward, on the slowest rank.

        None without records of such calls.
        """
        traits, total = work.plan.partition.mask.traits, 0.0
        for direction in ("fwd", "bwd") if call.direction == "bwd" else ("fwd",):
            model = self._fitted.find(
                self._kernel.name, direction, traits, call.num_q_heads // call.num_kv_heads
            )
            if model is None or call.elem_bytes != FITTED_ELEM_BYTES:
                return None
            device = DeviceModel(model, self._memory_bytes_per_s, self._kernel.merges)
            made = WorkForecast(work, replace(call, direction=direction), device, packs=self._links.packs)
            total += float(made.times(self._links).total_s.max())
        return total


def _passes_s(
    plan: Plan, q: range, kv: range, call: CallSpec, device: DeviceModel, *, packs: bool
) -> np.ndarray:
    """Seconds of the elementwise work of a plan's steps, (P, T)."""
    row, elem = call.head_dim / device.memory_bytes_per_s, call.elem_bytes
    some = plan.step_areas > 0
    later = some & (np.cumsum(some, axis=1) > 1)
    rows = np.minimum(plan.sharding.num_tokens[:, None], plan.step_band_rows / plan.partition.mask.num_groups)
    # a sum is read and written: by the kernel instead of its result, or separately, which also reads the
    # kernel's result
    per_row = 2 * SUM_BYTES - elem if device.merges else 2 * SUM_BYTES + elem + SUM_BYTES
    found = later * rows * len(q) * row * per_row
    if packs and not plan.forwards_kv and plan.world > 1:
        found += (plan.sent_kv + plan.received_kv) * 2 * len(kv) * row * elem
    if call.direction == "bwd" and plan.world > 1:
        for number, home in enumerate(
            PlanTraffic.of(plan).dkv[1:], 1
        ):  # gradients received after a step are added after the next one
            arrived = np.bincount(home.receiver, home.tokens, plan.world)
            found[:, min(number + 1, plan.num_steps - 1)] += (
                arrived * 2 * len(kv) * row * (elem + 2 * SUM_BYTES)
            )
        found[:, -1] += plan.sharding.num_tokens * 2 * len(kv) * row * (2 * SUM_BYTES + elem)
    return found


def _packing_s(
    work: WorkPartition, chunk: HeadChunk, head_rank: int, call: CallSpec, device: DeviceModel
) -> np.ndarray:
    """Seconds of packing the heads of a chunk for other ranks and for the return, (P,)."""
    share = chunk.heads.ranks[head_rank]
    heads = 3 * len(share.q) + (4 if call.direction == "bwd" else 2) * len(share.kv)
    return (
        work.plan.sharding.num_tokens
        * heads
        * call.head_dim
        * call.elem_bytes
        * 2
        / device.memory_bytes_per_s
    )


def _sent_bytes(work: WorkPartition, call: CallSpec, ranks_per_node: int) -> tuple[float, float]:
    """(largest number of bytes sent by a rank, largest number of bytes that a rank sends to other nodes)."""
    mesh, row = work.mesh, call.head_dim * call.elem_bytes
    node = np.arange(mesh.world) // ranks_per_node
    sent, between = np.zeros(mesh.world), np.zeros(mesh.world)
    backward = call.direction == "bwd"
    traffic_of: dict[range, np.ndarray] = {}  # tokens by (receiver, sender)
    for head_rank in range(mesh.heads if mesh.ring > 1 else 0):
        ranks = np.array(mesh.ring_of(head_rank))
        for chunk in work.chunks:
            if not chunk.heads.ranks[head_rank].q:
                continue
            groups, heads = work.mask_groups(chunk, head_rank), len(chunk.heads.ranks[head_rank].kv)
            if groups not in traffic_of:
                traffic_of[groups] = PlanTraffic.of(work.plan_of(groups)).tokens(backward=backward)[0]
            moved, bytes_of_token = traffic_of[groups], 2 * heads * row
            leaves = node[ranks[:, None]] != node[ranks]
            sent[ranks] += moved.sum(axis=0) * bytes_of_token
            between[ranks] += (moved * leaves).sum(axis=0) * bytes_of_token
    if mesh.heads > 1:
        heads = _heads_sent(work, backward)
        for rank in range(mesh.world):
            ring_rank, mine = mesh.of(rank)
            group = np.array(mesh.group(rank))
            others = np.arange(mesh.heads) != mine
            bytes_to = work.plan.sharding.num_tokens[ring_rank] / mesh.heads * row * heads[mine, others]
            sent[rank] += bytes_to.sum()
            between[rank] += bytes_to[node[group[others]] != node[rank]].sum()
    return float(sent.max()), float(between.max())


def _heads_sent(work: WorkPartition, backward: bool) -> np.ndarray:
    """Token-heads that each rank of a head group sends to each other rank, (N, N): inputs for the other's
    heads, results of its own."""
    q, arriving, leaving = (
        np.array([sum(len(side(chunk)[rank]) for chunk in work.chunks) for rank in range(work.mesh.heads)])
        for side in (lambda chunk: chunk.q, lambda chunk: chunk.arriving, lambda chunk: chunk.leaving)
    )
    if backward:
        return q + (q + 2 * leaving)[:, None]
    return q + 2 * arriving + q[:, None]


def memory_bytes(work: WorkPartition, call: CallSpec) -> float:
    """Largest memory of a rank in a call: the memory of attention itself, and that of the strategy."""
    mesh, plan, row, backward = work.mesh, work.plan, call.head_dim, call.direction == "bwd"
    tokens = float(plan.sharding.num_tokens.max()) / mesh.heads
    inputs = (
        (2 * call.num_q_heads + 2 * call.num_kv_heads)
        * tokens
        * row
        * call.elem_bytes
        * (2 if backward else 1)
    )
    q_heads = max(sum(len(chunk.q[rank]) for chunk in work.chunks) for rank in range(mesh.heads))
    kv_heads = (
        max(sum(len(chunk.arriving[rank]) for chunk in work.chunks) for rank in range(mesh.heads))
        or call.num_kv_heads
    )
    held = float(plan.sharding.num_tokens.max())
    gathered = (
        (2 * q_heads + 2 * kv_heads) * held * row * call.elem_bytes * (2 if backward else 1)
        if mesh.heads > 1
        else 0.0
    )
    buffers = 0.0
    if mesh.ring > 1:
        of_rank = int(plan.received_kv.sum(axis=1).argmax())
        buffers = (
            sum(BufferSchedule(plan, of_rank, early=True).buffer_keys) * 2 * kv_heads * row * call.elem_bytes
        )
        sums = q_heads * held + (2 * kv_heads * held + 2 * kv_heads * held if backward else 0)
        buffers += sums * row * SUM_BYTES + (2 * buffers if backward else 0)
    return inputs + gathered + buffers
