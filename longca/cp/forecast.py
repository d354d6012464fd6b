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
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from longca.core import Registry
from longca.cp.partition.mesh import SUM_BYTES
from longca.cp.partition.sharding import StripedSharding, contiguous
from longca.cp.schedule.memory import memory_bytes
from longca.cp.schedule.planner import LinkSpeeds, partition_mask
from longca.cp.schedule.timeline import PlanTraffic, WorkTimeline
from longca.predict import (
    clock_slowdown,
    covers_all,
    even_idle,
    heads_of_item,
    items_of,
    part_amounts,
    ways_of_parts,
)
from longca.predict.fitted import CallModel, call_amounts, whole_statistics

if TYPE_CHECKING:
    from longca.core import CallSpec, Messages, Network
    from longca.cp.partition.mesh import HeadChunk
    from longca.cp.schedule.plan import Plan
    from longca.cp.schedule.timeline import RankTimes
    from longca.cp.schedule.work_partition import WorkPartition
    from longca.masks import Mask
    from longca.predict import KernelModel


@dataclass(frozen=True)
class DeviceModel:
    """A kernel on a GPU in one direction."""

    kernel: CallModel
    memory_bytes_per_s: float
    """bandwidth of elementwise passes"""
    merges: bool
    """True if the kernel merges results of steps in its epilogue"""


def kernels_s(
    plan: Plan, num_q: int, num_kv: int, call: CallSpec, device: DeviceModel
) -> tuple[np.ndarray, np.ndarray | float]:
    """(seconds of each rank's kernels at full clock (P, T), their throttles (P, T))."""
    steps = _step_ways(plan, num_kv, device.kernel)
    if steps is None:
        model = device.kernel.for_call(plan.partition.mask, num_kv)
        return _kernels_of_way_s(plan, num_q, num_kv, call, model), model.throttle
    seconds = np.zeros(steps.shape)
    throttle = np.zeros(steps.shape)
    for way in dict.fromkeys(steps.ravel().tolist()):
        model = device.kernel.of(way)
        of_way = steps == way
        throttle[of_way] = model.throttle
        if (of_way & (plan.step_areas > 0)).any():  # else no kernel runs
            seconds[of_way] = _kernels_of_way_s(plan, num_q, num_kv, call, model)[of_way]
    return seconds, throttle


def _step_ways(plan: Plan, num_kv: int, kernel: CallModel) -> np.ndarray | None:
    """The algorithm of each step, (P, T); None if a single rank has the whole mask, or for kernels with one
    algorithm."""
    mask = plan.partition.mask
    if plan.world == 1 or mask.grid is not None or not any(model.way for model in kernel.ways):
        return None
    area = plan.step_areas / mask.num_groups
    return ways_of_parts(mask, area, plan.step_rows, plan.step_keys, num_kv)


def _kernels_of_way_s(plan: Plan, num_q: int, num_kv: int, call: CallSpec, model: KernelModel) -> np.ndarray:
    """`kernels_s` for one model."""
    mask = plan.partition.mask
    if plan.world == 1:
        own = call_amounts(model, mask, num_q, num_kv)
        return model.boosted_s(own * (plan.step_areas > 0)[..., None], call.head_dim)
    ratio = num_q // num_kv
    whole = whole_statistics(mask, model.shape, ratio)
    groups = mask.num_groups
    ends = row_ends(mask)
    if not isinstance(plan.sharding, StripedSharding):  # cuts of chunks are between tiles: no row ends there
        ends = max(ends, float(plan.step_band_rows.sum()))
    hidden, partial = (
        (amount * groups / ends if ends else 0.0) for amount in (whole.computed - whole.area, whole.partial)
    )
    area = plan.step_areas / groups
    band_rows = plan.step_band_rows / groups
    rows = plan.step_rows
    keys = plan.step_keys
    computed = (
        rows * keys if covers_all(model.kernel, model.direction, mask.traits) else area + hidden * band_rows
    )
    partial = np.minimum(partial * band_rows, computed)
    items = items_of(model.kernel, model.direction, model.way)
    lines = np.ceil(keys / model.shape.keys if items.by_keys else rows / model.shape.tokens(ratio))
    idle = items.share * even_idle(
        computed * num_q, lines * num_q / heads_of_item(items, model.shape, ratio), in_order=items.in_order
    )
    found = part_amounts(computed - partial, partial, 0.0, rows, idle, num_q, num_kv)
    return model.boosted_s(found * (plan.step_areas > 0)[..., None], call.head_dim)


def row_ends(mask: Mask) -> float:
    """Rows of bands of a mask, over its head groups."""
    key = "row ends"
    if key not in mask.kept:
        mask.kept[key] = float(partition_mask(mask, contiguous(mask.seqlen_q, 1)).band_rows.sum())
    return mask.kept[key]


PROFILES: dict[Messages, str] = {
    "nccl": "h200-nccl",
    "symmetric": "h200-copy-engines",
}  # of messages, in config/hardware.yaml
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
        self._work = work
        self._call = call
        self._device = device
        self._packs = packs
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
        self.compute_s = float(busy[most]) * self.slowdown
        """of the busiest rank: the least that the call can take"""
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

    def seconds(self, links: LinkSpeeds) -> float:
        """Seconds of the slowest rank, as those of `at`."""
        return float(self._line.total_s(links).max())

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
        mask = self._work.plan.partition.mask
        heads_per_kv = self._call.num_q_heads // self._call.num_kv_heads
        return whole_statistics(mask, self._device.kernel.usual.shape, heads_per_kv).waste

    @cached_property
    def _memory(self) -> float:
        return memory_bytes(self._work, self._call, Registry("kernel").load(self._device.kernel.usual.kernel))

    def _shares(self) -> dict[tuple[int, int], _ShareTimes]:
        """The work of each chunk of each rank of a head group; equal work is shared."""
        work = self._work
        shares = dict[tuple[int, int], _ShareTimes]()
        known = dict[Hashable, _ShareTimes]()
        plans: dict[range, Plan] = {}
        for index, chunk in enumerate(work.chunks):
            for head_rank, share in enumerate(chunk.heads.ranks):
                if not share.q:
                    continue
                groups = work.mask_groups(chunk, head_rank)
                if groups not in plans:
                    plans[groups] = work.plan_of(groups, backward=self._call.direction == "bwd")
                key = groups, len(share.q), len(share.kv), len(share.local_kv)
                if key not in known:
                    known[key] = self._share_times(plans[groups], chunk, head_rank)
                shares[index, head_rank] = known[key]
        return shares

    def _share_times(self, plan: Plan, chunk: HeadChunk, head_rank: int) -> _ShareTimes:
        share = chunk.heads.ranks[head_rank]
        kernels, throttle = kernels_s(plan, len(share.q), len(share.local_kv), self._call, self._device)
        times = kernels + _passes_s(plan, share.q, share.kv, self._call, self._device, packs=self._packs)
        if self._work.backward_at_once and self._call.direction == "bwd":  # k, v, dk and dv are sorted
            row_s = self._call.head_dim * self._call.elem_bytes / self._device.memory_bytes_per_s
            times += plan.step_keys * 4 * 2 * len(share.kv) * row_s
        if self._work.mesh.heads > 1:
            times[:, 0] += _packing_s(self._work, chunk, head_rank, self._call, self._device)
        return _ShareTimes(times, throttle, (plan.step_areas > 0).sum(axis=1))


def forecast(work: WorkPartition, call: CallSpec, device: DeviceModel, links: LinkSpeeds) -> CallForecast:
    """Forecasts a call in the direction of its specification."""
    return WorkForecast(work, call, device, packs=links.packs).at(links)


def _passes_s(
    plan: Plan, q: range, kv: range, call: CallSpec, device: DeviceModel, *, packs: bool
) -> np.ndarray:
    """Seconds of the elementwise work of a plan's steps, (P, T)."""
    row = call.head_dim / device.memory_bytes_per_s
    elem = call.elem_bytes
    some = plan.step_areas > 0
    later = some & (np.cumsum(some, axis=1) > 1)
    # a sum is read and written: by the kernel instead of its result, or separately, and then that is read
    per_row = 2 * SUM_BYTES - elem if device.merges else 2 * SUM_BYTES + elem + SUM_BYTES
    elements = later * plan.step_rows * len(q) * row * per_row
    if packs and not plan.forwards_kv and plan.world > 1:
        elements += (plan.sent_kv + plan.received_kv) * 2 * len(kv) * row * elem
    if call.direction == "bwd" and plan.world > 1:
        # gradients received after a step are added after the next one
        for number, home in enumerate(PlanTraffic.of(plan).dkv[1:], 1):
            added_in = min(number + 1, plan.num_steps - 1)
            arrived = np.bincount(home.receiver, home.tokens, plan.world)
            elements[:, added_in] += arrived * 2 * len(kv) * row * (elem + 2 * SUM_BYTES)
        elements[:, -1] += plan.sharding.num_tokens * 2 * len(kv) * row * (2 * SUM_BYTES + elem)
    return elements


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
    mesh = work.mesh
    row = call.head_dim * call.elem_bytes
    node = np.arange(mesh.world) // ranks_per_node
    sent = np.zeros(mesh.world)
    between = np.zeros(mesh.world)
    backward = call.direction == "bwd"
    traffic_of: dict[range, np.ndarray] = {}  # tokens by (receiver, sender)
    for head_rank in range(mesh.heads if mesh.ring > 1 else 0):
        ranks = np.array(mesh.ring_of(head_rank))
        for chunk in work.chunks:
            if not chunk.heads.ranks[head_rank].q:
                continue
            groups = work.mask_groups(chunk, head_rank)
            heads = len(chunk.heads.ranks[head_rank].kv)
            if groups not in traffic_of:
                traffic_of[groups] = PlanTraffic.of(work.plan_of(groups)).tokens(backward=backward)[0]
            moved = traffic_of[groups]
            bytes_of_token = 2 * heads * row
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
