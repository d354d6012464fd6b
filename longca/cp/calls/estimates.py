"""Estimates of strategies' calls, for the choice among them: from kernels fitted on an H200, or by rates."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache, cached_property
from typing import TYPE_CHECKING

from longca.core import load_hardware
from longca.cp.forecast import PASS_EFFICIENCY, PROFILES, DeviceModel, WorkForecast, links_of
from longca.cp.schedule.planner import LinkSpeeds
from longca.cp.schedule.timeline import estimated_s
from longca.predict.fitted import load_fitted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from longca.core import CallSpec, Messages
    from longca.cp.schedule.work_partition import WorkPartition
    from longca.kernels import Kernel, Problem

USUAL_BANDWIDTH_GB_S = 4800.0  # of an H200's memory, the default without config/hardware.yaml
FITTED_ELEM_BYTES = 2
ROUNDING = 1 + 1e-9  # a lower bound may be larger than the seconds themselves by errors of rounding


class Estimate:
    """Seconds of calls: a lower bound at once, and the rest of the work when they are asked for."""

    def __init__(self, least_s: float, seconds: Callable[[], float]) -> None:
        self.least_s = least_s
        self._seconds = seconds

    @classmethod
    def of(cls, seconds: float) -> Estimate:
        return cls(seconds, lambda: seconds)

    @classmethod
    def sum_of(cls, estimates: Sequence[Estimate]) -> Estimate:
        return cls(
            sum(estimate.least_s for estimate in estimates),
            lambda: sum(estimate.seconds for estimate in estimates),
        )

    @cached_property
    def seconds(self) -> float:
        return self._seconds()


def fastest(estimates: Mapping[str, Estimate]) -> str:
    """The name of the least seconds, the first of equal ones. Estimates whose lower bound is larger are left
    as they are."""
    least_s = math.inf
    asked = set[str]()
    for name in sorted(estimates, key=lambda name: estimates[name].least_s):
        if estimates[name].least_s > least_s * ROUNDING:
            break
        asked.add(name)
        least_s = min(least_s, estimates[name].seconds)
    return min((name for name in estimates if name in asked), key=lambda name: estimates[name].seconds)


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
        self._links = replace(links, ranks_per_node=ranks_per_node)
        self._kernel = kernel
        self._fitted = load_fitted()
        self._memory_bytes_per_s = (
            (hardware.bandwidth_gb_s(self._fitted.device) or USUAL_BANDWIDTH_GB_S) * 1e9 * PASS_EFFICIENCY
        )

    def estimate(self, work: WorkPartition, call: CallSpec) -> Estimate | None:
        """Seconds of a forward call and, if required, its backward, on the slowest rank.

        None without records of such calls.
        """
        traits = work.plan.partition.mask.traits
        directions = []
        for direction in ("fwd", "bwd") if call.direction == "bwd" else ("fwd",):
            model = self._fitted.find(
                self._kernel.name, direction, traits, call.num_q_heads // call.num_kv_heads
            )
            if model is None or call.elem_bytes != FITTED_ELEM_BYTES:
                return None
            device = DeviceModel(model, self._memory_bytes_per_s, self._kernel.merges)
            directions.append(
                WorkForecast(work, replace(call, direction=direction), device, packs=self._links.packs)
            )
        return Estimate(
            sum(forecast.compute_s for forecast in directions),
            lambda: sum(forecast.seconds(self._links) for forecast in directions),
        )


class Estimator:
    """Seconds of calls of several problems, for the choice of a strategy and of a sharding: by fitted
    kernels, or by rates alone where no record tells of such calls."""

    def __init__(self, kernel: Kernel, messages: Messages, ranks_per_node: int, is_fitted: bool) -> None:
        """
        Args:
            is_fitted: by fitted kernels where there are such, as on GPUs; else by rates alone.
        """
        self._links = LinkSpeeds(ranks_per_node=ranks_per_node)
        self._forecaster = Forecaster(kernel, messages, ranks_per_node) if is_fitted else None

    def estimate(self, works: Sequence[WorkPartition], problems: Sequence[Problem]) -> Estimate:
        """A call of each problem, by its work partition."""
        calls = []
        for work, problem in zip(works, problems, strict=True):
            call = problem.call_spec
            estimate = self._forecaster.estimate(work, call) if self._forecaster is not None else None
            if estimate is None:
                seconds = estimated_s(work, call, self._links, needs_backward=problem.needs_backward)
                estimate = Estimate.of(seconds)
            calls.append(estimate)
        return Estimate.sum_of(calls)

    def fastest(
        self, works: Mapping[str, Sequence[WorkPartition]], problems: Sequence[Problem]
    ) -> tuple[str, Callable[[], dict[str, float]]]:
        """(the name of the fastest work partitions, the seconds of all by name, when they are asked for)."""
        estimates = {name: self.estimate(of_name, problems) for name, of_name in works.items()}
        seconds = cache(lambda: {name: estimate.seconds for name, estimate in estimates.items()})
        return fastest(estimates), seconds
