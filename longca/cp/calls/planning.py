"""Plans of masks: the choice of a strategy, the sharding that several masks share, and planning in a
background thread.

A plan needs no other rank, so each rank makes it by itself, in a thread of its own. The thread also prepares
the kernels. Its plans have deferred comm streams (`DeferredComm`): ranks open them together when they take
the plan.

    thread of a rank    choose strategy and sharding → partition the work → prepare kernels
    all ranks together                                                                      → compare outcomes → open comm streams
"""  # noqa: E501

from __future__ import annotations

import hashlib
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from longca.core import UserError
from longca.cp.calls.ranks import all_or_none
from longca.cp.calls.request import AUTO
from longca.cp.calls.warming import warm_kernel
from longca.cp.comm.p2p import ReceiveBuffers
from longca.cp.partition.mesh import RANKS_PER_NODE

if TYPE_CHECKING:
    import torch

    from longca.core import Scalar
    from longca.cp.calls.estimates import Estimator
    from longca.cp.calls.request import CpRequest
    from longca.cp.comm.backend import Comm
    from longca.cp.comm.p2p import CommStream
    from longca.cp.contract import HeadStrategy, PreparedStrategy
    from longca.cp.partition.sharding import Sharding
    from longca.cp.schedule.work_partition import WorkPartition
    from longca.kernels import Kernel, Problem
    from longca.masks import Mask

MAX_KEPT = 4  # plans of different masks; each holds the tables of its kernels
LOCAL_WORLD_SIZE = "LOCAL_WORLD_SIZE"  # torchrun's name for the ranks of a machine

Key = tuple[str, ...]
"""the digests of masks that share a sharding"""


@dataclass(frozen=True)
class MaskPlan:
    """Masks that share a sharding, prepared on one rank."""

    strategy: str
    """with the parameters that differ from their defaults"""
    sharding: str
    prepared: tuple[PreparedStrategy, ...]
    """by mask"""
    num_tokens: list[int]
    """of each rank"""
    positions: torch.Tensor
    """position ids of this rank's tokens, (L,) int64, on the device"""
    inverse: torch.Tensor
    """the place of each token among those of all ranks, one rank after another, (T,) int64, on the device"""
    estimated_s: Callable[[], dict[str, float]]
    """seconds of one attention call of each mask, with its backward, by strategy, as fitted on records of an
    H200; at the rates of the cost model where no record tells. Those that did not decide are computed when
    asked for"""
    refused: dict[str, str]
    """by strategy, the reason why it was left out"""
    plan_ms: float
    streams: dict[str, DeferredStream] = field(default_factory=dict)

    def copied_positions(self) -> torch.Tensor:
        """A copy of `positions`, which training may use although it was made in inference mode."""
        import torch

        with torch.inference_mode(False):
            return self.positions.clone()


@dataclass(frozen=True)
class _Choice:
    strategy: HeadStrategy
    works: list[WorkPartition]
    estimated_s: Callable[[], dict[str, float]]
    refused: dict[str, str]


class MaskPlanner:
    """Plans masks for one request, ahead of time where it is asked to, and keeps the last plans. All ranks
    call `take` alike."""

    def __init__(self, comm: Comm, request: CpRequest) -> None:
        self._comm = comm
        self._request = request
        self._kernel: Kernel = request.load_kernel()
        self._strategies = sorted(
            request.strategies(),
            key=lambda strategy: (len(type(strategy.params).model_fields), strategy.name),
        )  # simple ones first
        shared: dict[Any, Any] = {}
        for strategy in self._strategies:
            strategy.share_plans(shared)
        self._ranks_per_node = int(comm.gather(os.environ.get(LOCAL_WORLD_SIZE, RANKS_PER_NODE))[0])
        self._thread = ThreadPoolExecutor(1, "longca-plans")
        self._started: dict[Key, Future[MaskPlan | _Choice]] = {}
        self._kept: OrderedDict[Key, MaskPlan] = OrderedDict()

    def start(self, masks: Sequence[Mask]) -> None:
        """Begins to plan in the background, unless that is done or under way."""
        key = _key(masks)
        if key in self._kept or key in self._started:
            return
        in_context = _device_context(self._request.device)
        self._started[key] = self._thread.submit(in_context, lambda: self._plan(masks))

    def take(self, masks: Sequence[Mask]) -> tuple[MaskPlan, float]:
        """(the plan, milliseconds that this call waited for it).

        Raises:
            UserError: on all ranks, where no strategy does the masks.
        """
        import torch

        key = _key(masks)
        start_s = time.perf_counter()
        if key not in self._kept:
            self.start(masks)
            found = all_or_none(self._comm, self._started.pop(key).result)
            with torch.inference_mode(False):  # training may use the plan later
                plan = (
                    self._prepare(found, masks, self._comm, start_s) if isinstance(found, _Choice) else found
                )
                for name in sorted(plan.streams):
                    plan.streams[name].open(self._comm.stream(name))
            self._kept[key] = plan
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key], (time.perf_counter() - start_s) * 1e3

    def warm(self, masks: Sequence[Mask]) -> int:
        """Compiles what calls under these and other masks can need. A collective call."""
        return warm_kernel(
            self._comm, self._request, self._kernel, self._strategies, masks, self._ranks_per_node
        )

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)
        self._kept.clear()

    def _plan(self, masks: Sequence[Mask]) -> MaskPlan | _Choice:
        start_s = time.perf_counter()
        choice = self._choose([self._request.problem(mask) for mask in masks])
        if self._comm.messages == "symmetric":
            return choice  # receive buffers are then made by all ranks together
        return self._prepare(choice, masks, DeferredComm(self._comm), start_s)

    def _prepare(self, choice: _Choice, masks: Sequence[Mask], comm: Any, start_s: float) -> MaskPlan:
        import torch

        from longca.ops import on_device

        prepared = tuple(
            choice.strategy.prepare_work(self._request.problem(mask), self._kernel, comm, work, 0.0)
            for mask, work in zip(masks, choice.works, strict=True)
        )
        assert all(np.array_equal(each.shard.positions_L, prepared[0].shard.positions_L) for each in prepared)
        work, name = choice.works[0], _title(choice.strategy)
        sharding = work.plan.sharding
        mine = work.mesh.positions(sharding, self._comm.rank)
        assert np.array_equal(mine, prepared[0].shard.positions_L)
        # ranks of a head group divide the tokens of their ring rank in order, as the sharding has them
        places = torch.from_numpy(mine), torch.from_numpy(sharding.inverse)
        positions, inverse = on_device(places, self._comm.device)
        return MaskPlan(
            name,
            sharding.name,
            prepared,
            [
                len(part)
                for ring_rank in range(work.mesh.ring)
                for part in work.mesh.tokens(sharding, ring_rank)
            ],
            positions,
            inverse,
            choice.estimated_s,
            choice.refused,
            (time.perf_counter() - start_s) * 1e3,
            comm.streams if isinstance(comm, DeferredComm) else {},
        )

    @cached_property
    def _estimator(self) -> Estimator:
        """Made when seconds are first asked for: a strategy that was given needs no models of time."""
        from longca.cp.calls.estimates import Estimator

        is_fitted = self._request.device.type == "cuda"
        return Estimator(self._kernel, self._comm.messages, self._ranks_per_node, is_fitted)

    def _choose(self, problems: Sequence[Problem]) -> _Choice:
        refused: dict[str, str] = {}
        works: dict[str, tuple[HeadStrategy, list[WorkPartition]]] = {}
        for strategy in self._strategies:
            name = _title(strategy)
            reason = self._refusal(strategy, problems)
            if reason is not None:
                refused[name] = reason
                continue
            works[name] = strategy, self._shared(strategy, problems)
        if not works:
            name, reason = next(iter(refused.items()))
            asked = f"Strategy '{name}' with kernel '{self._kernel.name}'"
            raise UserError(
                f"{asked} cannot do this mask on {self._comm.world} ranks",
                why=reason,
                todo="Take another kernel"
                if self._request.strategy == AUTO
                else 'Take strategy="auto", or another kernel',
            )
        if len(works) == 1:
            [(name, (strategy, shared))] = works.items()
            return _Choice(strategy, shared, cache(lambda: {name: self._seconds(shared, problems)}), refused)
        fastest, seconds = self._estimator.fastest(
            {name: shared for name, (_, shared) in works.items()}, problems
        )
        return _Choice(*works[fastest], seconds, refused)

    def _refusal(self, strategy: HeadStrategy, problems: Sequence[Problem]) -> str | None:
        device_type = self._request.device.type
        reasons = (
            strategy.refusal(problem.mask, problem.call_spec, self._comm.world, self._kernel, device_type)
            for problem in problems
        )
        return strategy.available(device_type) or next(filter(None, reasons), None)

    def _shared(self, strategy: HeadStrategy, problems: Sequence[Problem]) -> list[WorkPartition]:
        """The work partitions of all masks on one sharding: of those that are best for one mask, the one that
        is best for all together."""

        def partition(sharding: Sharding | None = None) -> list[WorkPartition]:
            return [
                strategy.partition_work(problem, self._kernel, self._comm.world, sharding=sharding)
                for problem in problems
            ]

        alone = partition()
        shardings = _different([work.plan.sharding for work in alone])
        if len(problems) == 1 or alone[0].heads_only or len(shardings) == 1:
            return alone
        return min(map(partition, shardings), key=lambda works: self._seconds(works, problems))

    def _seconds(self, works: Sequence[WorkPartition], problems: Sequence[Problem]) -> float:
        return self._estimator.estimate(works, problems).seconds


class DeferredComm:
    """The part of `Comm` that a strategy uses while it is prepared, without the other ranks: its comm streams
    are opened later."""

    def __init__(self, comm: Comm) -> None:
        self.rank = comm.rank
        self.world = comm.world
        self.device = comm.device
        self.keeps_order = comm.keeps_order
        self.messages_note = comm.messages_note
        self.streams: dict[str, DeferredStream] = {}

    def stream(self, name: str) -> DeferredStream:
        return self.streams.setdefault(name, DeferredStream())

    def receive_buffers(self) -> ReceiveBuffers:
        return ReceiveBuffers()


class DeferredStream:
    """A comm stream that ranks open together before the first message."""

    def open(self, stream: Any) -> None:
        self._stream = cast("CommStream", stream)
        self.post, self.all_to_all = self._stream.post, self._stream.all_to_all


def _different(shardings: Sequence[Sharding]) -> list[Sharding]:
    different: list[Sharding] = []
    for sharding in shardings:
        if not any(
            sharding.name == other.name and np.array_equal(sharding.order, other.order) for other in different
        ):
            different.append(sharding)
    return different


def _key(masks: Sequence[Mask]) -> Key:
    return tuple(mask.digest for mask in masks)


def _title(strategy: HeadStrategy) -> str:
    params: dict[str, Scalar] = strategy.params.model_dump(exclude_defaults=True)
    return (
        f"{strategy.name}({', '.join(f'{name}={value}' for name, value in params.items())})"
        if params
        else strategy.name
    )


def _device_context(device: Any) -> Callable[[Callable[[], Any]], Any]:
    """Runs work in another thread on the caller's device and stream, so that what it copies is there in the
    caller's order."""
    if device.type != "cuda":
        return lambda work: work()
    import torch

    stream = torch.cuda.current_stream(device)

    @contextmanager
    def here() -> Iterator[None]:
        with torch.cuda.device(device), torch.cuda.stream(stream):
            yield

    def run(work: Callable[[], Any]) -> Any:
        with here():
            return work()

    return run


def costs_of(plan: MaskPlan, waited_ms: float) -> dict[str, float]:
    costs = {"plan_ms": plan.plan_ms, "waited_ms": waited_ms}
    for number, prepared in enumerate(plan.prepared):
        prefix = f"mask {number}: " if len(plan.prepared) > 1 else ""
        costs |= {
            prefix + (f"kernel_{name}" if name in costs else name): cost
            for name, cost in prepared.costs.items()
        }
    return costs


def plan_text(plan: MaskPlan, masks: tuple[Mask, ...]) -> str:
    """A text of a plan for the comparison of calls: equal texts mean equal plans."""
    whole = repr((plan.strategy, plan.sharding, plan.num_tokens, [mask.digest for mask in masks]))
    digest = hashlib.sha256(whole.encode()).hexdigest()[:12]
    return f"plan {digest} ({plan.strategy}, {plan.sharding} sharding)"
