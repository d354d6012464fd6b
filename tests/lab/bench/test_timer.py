"""The timer on a clock of the test's own."""

import itertools
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pynvml
import pytest
import torch

from longca.lab.bench.measure.nvml import Gpu, Telemetry, open_gpu, reason_names
from longca.lab.bench.measure.timer import collect, time_calls, time_sustained
from longca.lab.bench.measure.timing.protocol import MIN_SAMPLES
from longca.lab.bench.measure.timing.stopwatch import MAX_LEAD_MS, CudaStopwatch, HostStopwatch, flushes
from longca.lab.studies.grid import Measure
from longca.lab.studies.record import Samples

NOTHING = Telemetry(None)


class Clock:
    """Time passes only when told."""

    def __init__(self) -> None:
        self.now_ns = 0

    def wait_ms(self, milliseconds: float) -> None:
        self.now_ns += round(milliseconds * 1e6)

    def sample(self, call: Callable[[], object], measure: Measure, **kwargs: object) -> Samples:
        return collect(
            HostStopwatch(lambda: self.now_ns),
            call,
            measure,
            kwargs.pop("telemetry", NOTHING),
            now=lambda: self.now_ns / 1e9,
            **kwargs,
        )


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_samples_are_what_the_calls_took_in_order(clock: Clock) -> None:
    durations = iter([50.0, 40.0, 3.0, 1.0, 2.0])
    samples = clock.sample(lambda: clock.wait_ms(next(durations)), Measure.fixed(warmup=2, repeats=3))
    assert samples.time_ms == ((3.0, 1.0, 2.0),)
    assert (samples.warmup, samples.timer, samples.stopped) == (2, "monotonic", "repeats")


def test_what_a_call_costs_the_host_is_kept(clock: Clock) -> None:
    stopwatch = HostStopwatch(lambda: clock.now_ns)
    assert (
        collect(stopwatch, lambda: clock.wait_ms(1), Measure.fixed(warmup=1, repeats=1), NOTHING).enqueue_ms
        is None
    )
    stopwatch.enqueue_ms = 1.5
    assert (
        collect(stopwatch, lambda: clock.wait_ms(1), Measure.fixed(warmup=1, repeats=1), NOTHING).enqueue_ms
        == 1.5
    )


def test_what_comes_before_a_call_is_not_timed(clock: Clock) -> None:
    log: list[str] = []

    def call() -> None:
        log.append("call")
        clock.wait_ms(1)

    def before() -> None:
        log.append("before")
        clock.wait_ms(100)

    samples = clock.sample(call, Measure.fixed(warmup=1, repeats=2), before_each=before)
    assert samples.time_ms == ((1.0, 1.0),)
    assert log == ["before", "call"] * 3


def test_stops_when_time_runs_out_but_not_before_three(clock: Clock) -> None:
    samples = clock.sample(lambda: clock.wait_ms(4000), Measure.fixed(warmup=0, repeats=50, max_seconds=1))
    assert len(samples.time_ms[0]) == MIN_SAMPLES and samples.stopped == "time"
    samples = clock.sample(lambda: clock.wait_ms(100), Measure.fixed(warmup=0, repeats=50, max_seconds=1))
    assert len(samples.time_ms[0]) == 11 and samples.stopped == "time"


def test_warm_up_does_not_outlast_the_time(clock: Clock) -> None:
    samples = clock.sample(lambda: clock.wait_ms(4000), Measure.fixed(warmup=9, repeats=3, max_seconds=1))
    assert samples.warmup == 1


def test_ranks_stop_together(clock: Clock) -> None:
    """The answer of `agree` holds, whatever this rank's clock says; it is asked after each call alike."""
    asked: list[Sequence[float]] = []

    def agree(mine: Sequence[float]) -> Sequence[float]:
        asked.append(mine)
        return (mine[0], True, False) if len(asked) == 6 else mine

    samples = clock.sample(lambda: clock.wait_ms(1), Measure.fixed(warmup=1, repeats=9), agree=agree)
    assert len(samples.time_ms[0]) == 5 and samples.stopped == "time"
    assert asked == [(1.0, False)] + [(1.0, False, False)] * 5


def test_ranks_stop_by_the_times_of_the_slowest(clock: Clock) -> None:
    """This rank's own times are steady; those of another one are not, until its tenth sample."""
    others = itertools.chain([9.0, 1.1] * 5, itertools.repeat(5.0))

    def agree(mine: Sequence[float]) -> Sequence[float]:
        return (max(mine[0], next(others)), *mine[1:])

    samples = clock.sample(
        lambda: clock.wait_ms(1), Measure(warmup=0, warm_seconds=0, repeats=10, max_repeats=300), agree=agree
    )
    assert set(samples.time_ms[0]) == {1.0} and samples.stopped == "precision"
    assert len(samples.time_ms[0]) > 10


def test_device_picks_the_stopwatch() -> None:
    samples = time_calls(lambda: None, Measure.fixed(warmup=0, repeats=4), torch.device("cpu"))
    assert samples.timer == "monotonic" and len(samples.time_ms[0]) == 4
    assert samples.sm_clock_mhz == () and samples.clock_event_reasons == ()


def fake_nvml(power_fails: bool = False) -> Gpu:
    """A GPU whose clock falls by 100 MHz at each look, held back by power."""
    clocks = iter(range(1900, 0, -100))

    class NVMLError(Exception):
        pass

    def power(handle: object) -> int:
        if power_fails:
            raise NVMLError
        return 350_500

    nvml = SimpleNamespace(
        NVMLError=NVMLError,
        NVML_CLOCK_SM=1,
        NVML_TEMPERATURE_GPU=0,
        nvmlDeviceGetClockInfo=lambda handle, kind: next(clocks),
        nvmlDeviceGetPowerUsage=power,
        nvmlDeviceGetTemperature=lambda handle, kind: 60,
        nvmlDeviceGetCurrentClocksEventReasons=lambda handle: 0b101,
        nvmlClocksEventReasonGpuIdle=0b1,
        nvmlClocksEventReasonNone=0,
        nvmlClocksEventReasonAll=0b111,
        nvmlClocksEventReasonSwPowerCap=0b100,
        nvmlClocksEventReasonSyncBoost=0b10,
    )
    return Gpu(nvml, "handle")


def test_clocks_stand_beside_the_samples(clock: Clock) -> None:
    samples = clock.sample(
        lambda: clock.wait_ms(1), Measure.fixed(warmup=2, repeats=3), telemetry=Telemetry(fake_nvml())
    )
    assert samples.sm_clock_mhz == (1900.0, 1800.0, 1700.0)
    assert samples.power_w == (350.5,) * 3 and samples.temperature_c == (60.0,) * 3
    assert samples.clock_event_reasons == ("SwPowerCap",)  # an idle GPU is not held back


@pytest.mark.parametrize(("last_ms", "ends_after", "expected"), [(0.1, 9, 1), (40.0, 9, 4), (40.0, 1, 2)])
def test_a_gpu_is_read_while_the_call_runs(last_ms: float, ends_after: int, expected: int) -> None:
    """Once as soon as a short call runs, at even distances in a long one, and no more when it is over."""
    log: list[str] = []
    watch = object.__new__(CudaStopwatch)
    watch._last_ms = last_ms
    start = SimpleNamespace(synchronize=lambda: log.append("started"))
    end = SimpleNamespace(query=lambda: log.count("read") > ends_after)
    begin = time.perf_counter()
    watch._read(lambda: log.append("read"), start, end)  # type: ignore[arg-type]
    assert log == ["started"] + ["read"] * expected
    assert time.perf_counter() - begin >= (0.5 + expected - 1) * last_ms / 4e3 if last_ms > 2 else True


def test_readings_of_one_call_are_one_mean() -> None:
    telemetry = Telemetry(fake_nvml())
    for _ in range(4):
        telemetry.read()
    assert telemetry.end_call() == 1750.0 and telemetry.end_call() is None
    telemetry.forget()
    telemetry.read()
    assert telemetry.end_call() == 1500.0 and telemetry.fields()["sm_clock_mhz"] == (1500.0,)


def test_a_quantity_that_fails_is_left_out(clock: Clock) -> None:
    telemetry = Telemetry(fake_nvml(power_fails=True))
    samples = clock.sample(lambda: clock.wait_ms(1), Measure.fixed(warmup=0, repeats=3), telemetry=telemetry)
    assert samples.power_w == () and len(samples.sm_clock_mhz) == 3


@pytest.mark.parametrize(
    "reason", ["SwPowerCap", "SwThermalSlowdown", "HwSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown"]
)
def test_the_library_names_what_holds_a_clock_back(reason: str) -> None:
    bit = getattr(pynvml, f"nvmlClocksEventReason{reason}")
    assert (
        reason_names(pynvml, bit)
        == reason_names(pynvml, bit | pynvml.nvmlClocksEventReasonGpuIdle)
        == (reason,)
    )


def test_no_gpu_is_no_error() -> None:
    with open_gpu(torch.device("cpu")) as gpu:
        assert gpu is None


@pytest.mark.parametrize("enqueue_ms", [0.0, 0.1, 2.5, 9.0])
def test_a_call_is_enqueued_while_flushes_run(enqueue_ms: float) -> None:
    """With half as long again, for a host that is slower the next time."""
    flush_ms = 0.03
    flush_enqueue_ms = 0.006
    number = flushes(enqueue_ms, flush_ms, flush_enqueue_ms)
    assert (
        number * (flush_ms - flush_enqueue_ms)
        >= 1.5 * enqueue_ms
        > (number - 12) * (flush_ms - flush_enqueue_ms)
    )


def test_flushes_have_an_end() -> None:
    """Flushes end whether a call waits for the GPU, or a flush is enqueued no sooner than done."""
    assert flushes(1e9, 0.03, 0.006) * 0.024 < MAX_LEAD_MS + 0.03
    assert flushes(1.0, 0.03, 0.05) == flushes(1.0, 0.03, 0.03) > flushes(1.0, 0.03, 0.006)


def test_sustained_calls_are_timed_after_two_seconds_of_them() -> None:
    ticks = iter(range(1000))
    calls: list[None] = []
    samples = time_sustained(
        lambda: calls.append(None),
        Measure.fixed(warmup=1, repeats=3, max_seconds=100),
        torch.device("cpu"),
        now=lambda: next(ticks) / 4,
    )
    assert samples.warmup == 8  # at four looks at the clock a second, the one before the first call included
    assert (len(samples.time_ms[0]), len(calls), samples.stopped) == (3, 11, "repeats")
    samples = time_sustained(
        lambda: None,
        Measure.fixed(warmup=12, repeats=50, max_seconds=2),
        torch.device("cpu"),
        now=lambda: next(ticks) / 4,
    )
    assert (samples.warmup, samples.stopped) == (
        12 + 7,
        "time",
    )  # the clock is looked at after the warm-up calls that were asked for
    assert MIN_SAMPLES < len(samples.time_ms[0]) < 50
