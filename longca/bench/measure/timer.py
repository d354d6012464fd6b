"""The timer: raw samples of a call, in order.

On a GPU, each sample is the time between two CUDA events around the call, on a cold L2. The flush of the L2 has a second purpose: while
the GPU is busy with it, the host enqueues the call. So a sample has no launch latency, which a stream of work would hide. Between the
two events there is only the call.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

import torch

from longca.bench.measure.nvml import Telemetry, open_gpu
from longca.core.cell import SETTLE_SECONDS
from longca.core.record import Samples
from longca.core.study import Measure

MIN_SAMPLES = 3
L2_FACTOR = 2  # a flush writes this many times the size of the L2: cache lines are not replaced strictly by age
# Before a call the GPU flushes for longer than the host once took to enqueue the call: hosts are not always as quick, and they enqueue the
# events and the barrier, too. The maximum is for calls that block the host: they would otherwise need more and more flushes.
LEAD_FACTOR, LEAD_MS, MAX_LEAD_MS = 1.5, 0.2, 15.0
AHEAD = 4  # calls that are enqueued behind the one that is waited for: a reading of NVML takes up to a millisecond
ENQUEUED = 7  # flushes that are enqueued to find the median time that the host takes for one


class Stopwatch(Protocol):
    """A way to time one call."""

    name: str
    enqueue_ms: float | None
    """time that the host took to enqueue the last warm-up call; None where the host does the work itself"""

    def warm(self, call: Callable[[], object]) -> None:
        """Run the call untimed."""
        ...

    def ready(self) -> None:
        """Prepare for the next sample: make the cache cold."""
        ...

    def time_ms(self, call: Callable[[], object]) -> float: ...


class Repeated(Protocol):
    """A call that is told when it is about to be made, and when its time was taken."""

    def __call__(self) -> object: ...

    def before(self) -> None: ...

    def after(self, *, timed: bool, poison: bool = True) -> None: ...


class HostStopwatch:
    """The monotonic clock."""

    name = "monotonic"
    enqueue_ms: float | None = None

    def __init__(self, clock_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock_ns = clock_ns

    def warm(self, call: Callable[[], object]) -> None:
        call()

    def ready(self) -> None:
        pass

    def time_ms(self, call: Callable[[], object]) -> float:
        start = self._clock_ns()
        call()
        return (self._clock_ns() - start) / 1e6


class CudaStopwatch:
    """CUDA events on the current stream, after a flush of the L2."""

    name = "cuda_event"

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.enqueue_ms: float | None = None
        size = L2_FACTOR * torch.cuda.get_device_properties(device).L2_cache_size
        self._buffer = torch.empty(size, dtype=torch.uint8, device=device)
        self._num_flushes = 1
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

    def time_ms(self, call: Callable[[], object]) -> float:
        return self._between_events(call)

    def _flush(self) -> None:
        self._buffer.zero_()

    def _enqueue_ms(self, call: Callable[[], object]) -> float:
        start = time.perf_counter_ns()
        call()
        return (time.perf_counter_ns() - start) / 1e6

    def _between_events(self, call: Callable[[], object]) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        stream = torch.cuda.current_stream(self._device)
        start.record(stream)
        call()
        end.record(stream)
        end.synchronize()
        return start.elapsed_time(end)


class CudaStream:
    """CUDA events around calls of which the next one is enqueued before the last one is waited for."""

    name = "cuda_event"

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device)
        self._started: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()

    def next_ms(self, call: Repeated, *, timed: bool) -> float:
        """The time of a call, some calls ago; that many are running behind it."""
        while len(self._started) <= AHEAD:
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
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
        flush_enqueue_ms: time of the host to enqueue one flush, which reduces its lead; it may be longer than `flush_ms`.
    """
    gained_ms = max(flush_ms - flush_enqueue_ms, flush_ms / 4)
    return math.ceil(min(LEAD_FACTOR * enqueue_ms + LEAD_MS, MAX_LEAD_MS) / gained_ms)


def time_calls(call: Callable[[], object] | Repeated, measure: Measure, device: torch.device,
               before_each: Callable[[], object] | None = None, agree: Callable[[bool], bool] | None = None) -> Samples:
    """Warms up a call and times it in this process.

    Args:
        call: the timed call; its result is dropped. A `Repeated` is told before and after each call, outside of the time.
        before_each: runs untimed right before every call (a barrier, for example). On a GPU it should not make the host wait.
        agree: for several ranks: turns this rank's wish to stop into the same answer on all of them. It is called once after each
            warm-up call and each sample. Without it each rank would stop by its own clock.

    Returns:
        Samples of one rank: `measure.repeats` of them, or fewer, but at least three, where `measure.max_seconds` ran out.
    """
    stopwatch: Stopwatch = CudaStopwatch(device) if device.type == "cuda" else HostStopwatch()
    with open_gpu(device) as gpu:
        return collect(stopwatch, call, measure, Telemetry(gpu), before_each, agree)


def time_sustained(call: Callable[[], object] | Repeated, measure: Measure, device: torch.device,
                   now: Callable[[], float] = time.monotonic) -> Samples:
    """Times calls that follow each other without a pause and without a flush of the L2, after `SETTLE_SECONDS` of such calls.

    Returns:
        `measure.repeats` samples, or fewer, but at least three, where `measure.max_seconds` ran out. Its warm-up calls are those of the
        two seconds.
    """
    repeated = _repeated(call)
    host = HostStopwatch()
    stream = CudaStream(device) if device.type == "cuda" else None

    def next_ms(*, timed: bool) -> float:
        if stream is not None:
            return stream.next_ms(repeated, timed=timed)
        repeated.before()
        time_ms = host.time_ms(repeated)
        repeated.after(timed=timed)
        return time_ms

    with open_gpu(device) as gpu:
        telemetry, start, warmup, times_ms = Telemetry(gpu), now(), 0, list[float]()
        while warmup < measure.warmup or now() - start < SETTLE_SECONDS:
            next_ms(timed=False)
            warmup += 1
        start = now()
        while len(times_ms) < measure.repeats and not (len(times_ms) >= MIN_SAMPLES and now() - start > measure.max_seconds):
            times_ms.append(next_ms(timed=True))
            telemetry.read()
        return Samples(time_ms=(tuple(times_ms),), warmup=warmup, timer=(stream or host).name,
                       stopped="repeats" if len(times_ms) == measure.repeats else "time", **telemetry.fields())


def collect(stopwatch: Stopwatch, call: Callable[[], object] | Repeated, measure: Measure, telemetry: Telemetry,
            before_each: Callable[[], object] | None = None, agree: Callable[[bool], bool] | None = None,
            now: Callable[[], float] = time.monotonic) -> Samples:
    """Warm-up calls, then samples, with the given stopwatch; `now`, in seconds, decides when time has run out."""
    before_each = before_each or (lambda: None)
    agree = agree or (lambda wish: wish)
    repeated = _repeated(call)
    start, warmup = now(), 0
    while warmup < measure.warmup:
        repeated.before()
        before_each()
        stopwatch.warm(repeated)
        repeated.after(timed=False)
        warmup += 1
        if agree(now() - start > measure.max_seconds):
            break
    start, times_ms, out_of_time = now(), [], False
    while len(times_ms) < measure.repeats and not out_of_time:
        repeated.before()
        stopwatch.ready()
        before_each()  # after the flushes, which take longer on one rank than on another
        times_ms.append(stopwatch.time_ms(repeated))
        repeated.after(timed=True)
        telemetry.read()
        out_of_time = agree(len(times_ms) >= MIN_SAMPLES and now() - start > measure.max_seconds)
    stopped = "repeats" if len(times_ms) == measure.repeats else "time"
    return Samples(time_ms=(tuple(times_ms),), warmup=warmup, timer=stopwatch.name, stopped=stopped, enqueue_ms=stopwatch.enqueue_ms,
                   **telemetry.fields())


class _Plain:
    """A call without anything before or after it."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call

    def __call__(self) -> None:
        self._call()

    def before(self) -> None:
        pass

    def after(self, *, timed: bool, poison: bool = True) -> None:
        pass


def _repeated(call: Callable[[], object] | Repeated) -> Repeated:
    return call if hasattr(call, "before") else _Plain(call)  # type: ignore[return-value]
