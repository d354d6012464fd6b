"""The timer: raw samples of a call, in order, by the protocol of
`longca.lab.bench.measure.timing.protocol`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from longca.lab.bench.measure.nvml import Telemetry, open_gpu
from longca.lab.bench.measure.timing.protocol import (
    MIN_SAMPLES,
    TIMED_SHARE,
    Steadiness,
    ended,
    least_warm_up_seconds,
    rest_seconds,
)
from longca.lab.bench.measure.timing.stopwatch import (
    CudaStopwatch,
    CudaStream,
    HostStopwatch,
    Repeated,
    Stopwatch,
)
from longca.lab.studies import Measure
from longca.lab.studies.cell import SETTLE_SECONDS
from longca.lab.studies.record import Samples

# warm-up calls that tell how long the host takes for one; the first may load what later ones find
ENQUEUE_CALLS = 2

Agree = Callable[[Sequence[float]], Sequence[float]]
"""the largest of each of these numbers over all ranks"""


def time_calls(
    call: Callable[[], object] | Repeated,
    measure: Measure,
    device: torch.device,
    before_each: Callable[[], object] | None = None,
    agree: Agree | None = None,
) -> Samples:
    """Warms up a call and times it in this process, by the protocol of
    `longca.lab.bench.measure.timing.protocol`.

    Args:
        call: the timed call; its result is dropped. A `Repeated` is told before and after each call, outside
            of the time.
        before_each: runs untimed right before every call (a barrier, for example). On a GPU it should not
            make the host wait.
        agree: for several ranks: gives all of them the largest of each number, so that they go on and stop
            together. It is called once after each call, timed or not.

    Returns:
        Samples of one rank: at least `measure.repeats`, or fewer, but at least three, where these would take
        half of the cell's timeout.
    """
    stopwatch: Stopwatch = CudaStopwatch(device) if device.type == "cuda" else HostStopwatch()
    with open_gpu(device) as gpu:
        return collect(stopwatch, call, measure, Telemetry(gpu), before_each, agree)


def time_sustained(
    call: Callable[[], object] | Repeated,
    measure: Measure,
    device: torch.device,
    now: Callable[[], float] = time.monotonic,
) -> Samples:
    """Times calls that follow each other without a pause and without a flush of the L2, after
    `SETTLE_SECONDS` of such calls.

    Returns:
        `measure.repeats` samples, or fewer, but at least three, where `measure.max_seconds` ran out. Its
        warm-up calls are those of the two seconds.
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
        telemetry = Telemetry(gpu)
        start = now()
        warmup = 0
        times_ms = list[float]()
        while warmup < measure.warmup or now() - start < SETTLE_SECONDS:
            next_ms(timed=False)
            warmup += 1
        start = now()
        while len(times_ms) < measure.repeats and not (
            len(times_ms) >= MIN_SAMPLES and now() - start > measure.max_seconds
        ):
            times_ms.append(next_ms(timed=True))
            telemetry.read()
            telemetry.end_call()
        return Samples(
            time_ms=(tuple(times_ms),),
            warmup=warmup,
            timer=(stream or host).name,  # pyright: ignore[reportArgumentType] - one of the two
            stopped="repeats" if len(times_ms) == measure.repeats else "time",
            **telemetry.fields(),
        )


def collect(
    stopwatch: Stopwatch,
    call: Callable[[], object] | Repeated,
    measure: Measure,
    telemetry: Telemetry,
    before_each: Callable[[], object] | None = None,
    agree: Agree | None = None,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> Samples:
    """Calls until the device is warm, then samples.

    Args:
        now: in s; decides when time has run out.
        sleep: lets the device rest for so many s.
    """
    calls = _Calls(stopwatch, _repeated(call), measure, telemetry, before_each or (lambda: None), sleep)
    agree = agree or (lambda numbers: numbers)
    start = now()
    warmup, is_steady = _warm(calls, measure, agree, now)
    warm_seconds = now() - start
    first = now()
    telemetry.forget()
    times_ms = list[float]()
    of_slowest = list[float]()
    stopped = None
    while stopped is None:
        times_ms.append(calls.time_ms(timed=True))
        slowest_ms, is_late, is_overdue = agree(
            (
                times_ms[-1],
                now() - first > measure.max_seconds,
                now() - start > TIMED_SHARE * measure.timeout_s,
            )
        )
        calls.rest_after(slowest_ms)
        of_slowest.append(slowest_ms)
        stopped = ended(of_slowest, measure, is_late=bool(is_late), is_overdue=bool(is_overdue))
    return Samples(
        time_ms=(tuple(times_ms),),
        warmup=warmup,
        timer=stopwatch.name,  # pyright: ignore[reportArgumentType] - one of the two
        stopped=stopped,
        enqueue_ms=stopwatch.enqueue_ms,
        steady=is_steady,
        warm_seconds=round(warm_seconds, 6),
        duty=calls.duty,
        **telemetry.fields(),
    )


def _warm(calls: _Calls, measure: Measure, agree: Agree, now: Callable[[], float]) -> tuple[int, bool | None]:
    """Make untimed calls until the device is steady. How many, and if it is steady; None if that is not
    tested.

    The first two tell how long the host takes for a call. All others are as the samples will be, so that
    nothing changes for the device.
    """
    start = now()
    number = 0
    is_overdue = False
    most_s = least_warm_up_seconds(measure)
    while number < min(measure.warmup, ENQUEUE_CALLS) and not is_overdue:
        time_ms = 1e3 * calls.warm_seconds(now)
        number += 1
        slowest_ms, is_overdue = agree((time_ms, now() - start > most_s))
        calls.rest_after(slowest_ms)
    steadiness = Steadiness(now(), has_controller=calls.has_controller, rests=calls.duty is not None)
    is_steady = False
    is_late = measure.warm_seconds == 0
    while not is_overdue and (number < measure.warmup or not (is_steady or is_late)):
        time_ms = calls.time_ms(timed=False)
        number += 1
        steadiness.add(time_ms, calls.clock_mhz, now())
        seconds = now() - start
        slowest_ms, is_unsteady, is_late, is_overdue = agree(
            (time_ms, not steadiness.is_steady, seconds > measure.warm_seconds, seconds > most_s)
        )
        is_steady = not is_unsteady
        calls.rest_after(slowest_ms)
    return number, is_steady if measure.warm_seconds else None


class _Calls:
    """Calls of one rank, one after another, each after the rest that the one before it asks for."""

    def __init__(
        self,
        stopwatch: Stopwatch,
        call: Repeated,
        measure: Measure,
        telemetry: Telemetry,
        before_each: Callable[[], object],
        sleep: Callable[[float], object],
    ) -> None:
        self._stopwatch = stopwatch
        self._call = call
        self._telemetry = telemetry
        self._before_each = before_each
        self._sleep = sleep
        self._rest_s = 0.0
        self.has_controller = stopwatch.has_controller
        self.duty = measure.duty if stopwatch.has_controller and measure.duty < 1 else None
        self.clock_mhz: float | None = None
        """mean SM clock during the last call"""

    def rest_after(self, time_ms: float) -> None:
        """Let the device rest before the next call, after one of that length on the slowest rank."""
        self._rest_s = 0.0 if self.duty is None else rest_seconds(time_ms, self.duty)

    def warm_seconds(self, now: Callable[[], float]) -> float:
        """Make a call without a flush. The time that the host waits for it, in s."""
        self._call.before()
        self._rest()
        self._before_each()
        start = now()
        self._stopwatch.warm(self._call)
        seconds = now() - start
        self._call.after(timed=False)
        return seconds

    def time_ms(self, *, timed: bool) -> float:
        """Make a call with all that a sample has. Its time in ms.

        Args:
            timed: it is a sample: its result may be judged.
        """
        self._call.before()
        self._rest()
        self._stopwatch.ready()
        self._before_each()  # after the flushes, which take longer on one rank than on another
        time_ms = self._stopwatch.time_ms(self._call, self._telemetry.read)
        self._call.after(timed=timed)
        self.clock_mhz = self._telemetry.end_call()
        return time_ms

    def _rest(self) -> None:
        if self._rest_s:
            self._sleep(self._rest_s)


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
