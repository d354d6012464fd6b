"""Alternating measurement: several ways to time the same thing, one after the other, so that a drift of the
clock hits all alike."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from longca.lab.bench.measure.timing.stopwatch import CudaStopwatch, HostStopwatch

T = TypeVar("T")
MIN_ROUNDS = 5
WARMUP = 3


@dataclass(frozen=True)
class Difference:
    """The relative difference of one way from another: median over rounds, and the distance between the
    quartiles."""

    relative: float
    iqr: float


def in_rounds(
    ways: Mapping[str, Callable[[], T]],
    num_rounds: int,
    max_seconds: float = math.inf,
    now: Callable[[], float] = time.monotonic,
) -> dict[str, list[T]]:
    """Runs each way once a round and returns their results by way. Every round begins with another way than
    the round before.

    Args:
        max_seconds: no further round starts after this long, but never fewer than five run.
    """
    results: dict[str, list[T]] = {name: [] for name in ways}
    order = list(ways)
    start = now()
    for number in range(num_rounds):
        if number >= MIN_ROUNDS and now() - start > max_seconds:
            break
        for name in order:
            results[name].append(ways[name]())
        order = order[1:] + order[:1]
    return results


def difference(times: Sequence[float], base: Sequence[float]) -> Difference:
    """Compares times with the base times of the same rounds."""
    relative = [time / other - 1 for time, other in zip(times, base, strict=True)]
    return Difference(statistics.median(relative), iqr(relative))


def iqr(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return third - first


def sampler(call: Callable[[], object], device: torch.device) -> Callable[[], float]:
    """Warms a call up and returns a function that times it once, in milliseconds, by longca's own stopwatch.

    Before each call a GPU rests for as long as the call lasted the last time, as in cells and play-offs
    (`docs/design/measuring.md`).
    """
    is_gpu = device.type == "cuda"
    stopwatch = CudaStopwatch(device) if is_gpu else HostStopwatch()
    for _ in range(WARMUP):
        stopwatch.warm(call)
    rest_s = 0.0

    def sample() -> float:
        nonlocal rest_s
        time.sleep(rest_s)
        stopwatch.ready()
        time_ms = stopwatch.time_ms(call)
        rest_s = time_ms / 1e3 if is_gpu else 0.0
        return time_ms

    return sample
