"""Stopwatches: the time of one call, on a GPU on a cold L2 and without launch latency.

On a GPU, a time is that between two CUDA events around the call. The flush of the L2 has a second purpose:
while the GPU is busy with it, the host enqueues the call. So a sample has no launch latency, which a stream
of work would hide. Between the two events there is only the call.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

import torch

# a flush writes this many times the size of the L2: cache lines are not replaced strictly by age
L2_FACTOR = 2
# Before a call the GPU flushes for longer than the host once took to enqueue the call: hosts are not always
# as quick, and they enqueue the events and the barrier, too. The maximum is for calls that block the host:
# they would otherwise need more and more flushes.
LEAD_FACTOR = 1.5
LEAD_MS = 0.2
MAX_LEAD_MS = 15.0
# calls that are enqueued behind the one that is waited for: a reading of NVML takes up to a millisecond
AHEAD = 4
ENQUEUED = 7  # flushes that are enqueued to find the median time that the host takes for one
# readings of a GPU in a longer call, whose clock a controller may lower meanwhile; one in a short call
READINGS = 4
LONGER_MS = 2.0


class Stopwatch(Protocol):
    """A way to time one call."""

    name: str
    enqueue_ms: float | None
    """time that the host took to enqueue the last warm-up call; None where the host does the work itself"""
    has_controller: bool
    """a power controller sets the device's clock: calls are paced, and warming takes its time"""

    def warm(self, call: Callable[[], object]) -> None:
        """Run the call untimed."""
        ...

    def ready(self) -> None:
        """Prepare for the next sample: make the cache cold."""
        ...

    def time_ms(self, call: Callable[[], object], beside: Callable[[], object] | None = None) -> float:
        """The time of a call in ms.

        Args:
            beside: called while the device is at it, once or a few times; right after it where the host does
                the work.
        """
        ...


class Repeated(Protocol):
    """A call that is told when it is about to be made, and when its time was taken."""

    def __call__(self) -> object: ...

    def before(self) -> None: ...

    def after(self, *, timed: bool, poison: bool = True) -> None: ...


class HostStopwatch:
    """The monotonic clock."""

    name = "monotonic"
    enqueue_ms: float | None = None
    has_controller = False

    def __init__(self, clock_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock_ns = clock_ns

    def warm(self, call: Callable[[], object]) -> None:
        call()

    def ready(self) -> None:
        pass

    def time_ms(self, call: Callable[[], object], beside: Callable[[], object] | None = None) -> float:
        start = self._clock_ns()
        call()
        end = self._clock_ns()
        if beside is not None:
            beside()
        return (end - start) / 1e6


class CudaStopwatch:
    """CUDA events on the current stream, after a flush of the L2."""

    name = "cuda_event"
    has_controller = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.enqueue_ms: float | None = None
        size = L2_FACTOR * torch.cuda.get_device_properties(device).L2_cache_size
        self._buffer = torch.empty(size, dtype=torch.uint8, device=device)
        self._num_flushes = 1
        self._last_ms = 0.0
        self._flush()  # the first one loads its kernel
        self._flush_ms = self._between_events(self._flush)
        self._flush_enqueue_ms = statistics.median(self._enqueue_ms(self._flush) for _ in range(ENQUEUED))

    def warm(self, call: Callable[[], object]) -> None:
        torch.cuda.synchronize(self._device)
        self.enqueue_ms = self._enqueue_ms(call)
        torch.cuda.synchronize(self._device)
        self._num_flushes = flushes(self.enqueue_ms, self._flush_ms, self._flush_enqueue_ms)

    def ready(self) -> None:
        for _ in range(self._num_flushes):
            self._flush()

    def time_ms(self, call: Callable[[], object], beside: Callable[[], object] | None = None) -> float:
        self._last_ms = self._between_events(call, beside)
        return self._last_ms

    def _flush(self) -> None:
        self._buffer.zero_()

    def _enqueue_ms(self, call: Callable[[], object]) -> float:
        start = time.perf_counter_ns()
        call()
        return (time.perf_counter_ns() - start) / 1e6

    def _between_events(
        self, call: Callable[[], object], beside: Callable[[], object] | None = None
    ) -> float:
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        stream = torch.cuda.current_stream(self._device)
        start.record(stream)
        call()
        end.record(stream)
        if beside is not None:
            self._read(beside, start, end)
        end.synchronize()
        return start.elapsed_time(end)

    def _read(self, beside: Callable[[], object], start: torch.cuda.Event, end: torch.cuda.Event) -> None:
        """Read at even distances in a call that lasts as long as the last one; once, as soon as it runs,
        where it is short."""
        start.synchronize()  # the flush is over
        pause_s = self._last_ms / READINGS / 1e3 if self._last_ms >= LONGER_MS else 0.0
        for number in range(READINGS if pause_s else 1):
            time.sleep(pause_s if number else pause_s / 2)
            if number and end.query():
                break
            beside()


class CudaStream:
    """CUDA events around calls of which the next one is enqueued before the last one is waited for."""

    name = "cuda_event"

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device)
        self._started: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()

    def next_ms(self, call: Repeated, *, timed: bool) -> float:
        """The time of a call, some calls ago; that many are running behind it."""
        while len(self._started) <= AHEAD:
            start = torch.cuda.Event(enable_timing=True)
            end = torch.cuda.Event(enable_timing=True)
            call.before()
            start.record(self._stream)
            call()
            end.record(self._stream)
            call.after(timed=timed, poison=False)
            self._started.append((start, end))
        start, end = self._started.popleft()
        end.synchronize()
        return start.elapsed_time(end)


def flushes(enqueue_ms: float, flush_ms: float, flush_enqueue_ms: float) -> int:
    """The number of flushes that keep a GPU busy until the host has enqueued a call after them.

    Args:
        enqueue_ms: time of the host to enqueue the call.
        flush_ms: time of the GPU for one flush.
        flush_enqueue_ms: time of the host to enqueue one flush, which reduces its lead; it may be longer than
            `flush_ms`.
    """
    gained_ms = max(flush_ms - flush_enqueue_ms, flush_ms / 4)
    return math.ceil(min(LEAD_FACTOR * enqueue_ms + LEAD_MS, MAX_LEAD_MS) / gained_ms)
