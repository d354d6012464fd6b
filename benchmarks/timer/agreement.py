"""Compares longca's timer with others: the same calls, from 0.05 to 50 ms, timed in four alternating ways.

    python -m benchmarks.timer.agreement [--rounds 7] [--only matmul,copy] [--write
    docs/results/h200/timer.md]

`do_bench` is `triton.testing.do_bench` with its own flush. The loops are written by hand: events around each
call, all calls enqueued before the host waits, with the same flush of the L2 as longca's, and without one.
Needs one GPU; takes a minute.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import torch

from benchmarks.common.rounds import Difference, difference, in_rounds, iqr
from benchmarks.common.text import machine, milliseconds, names, percent
from longca.core import format_length
from longca.lab.bench.measure.nvml import Gpu, open_gpu
from longca.lab.bench.measure.timer import time_calls
from longca.lab.bench.measure.timing.stopwatch import L2_FACTOR
from longca.lab.studies import Measure
from tools.table import Table, add_options

NAME = "timer_agreement"
WAYS = ("longca", "do_bench", "loop", "loop_no_flush")
FLUSHED = ("do_bench", "loop")
KINDS = ("matmul", "copy", "torch_flash", "flashmask")
TOLERANCE = 0.02
FROM_MS = 1.0
ROUND_MS = 60.0  # of calls by each way in a round
LEAST_CALLS = 5
MOST_CALLS = 50
COLUMNS = (
    "call",
    "longca, ms",
    "IQR",
    "against do_bench",
    "IQR",
    "against the loop",
    "IQR",
    "against the loop without flush",
    "SM clock, MHz: longca, do_bench, loop",
    "within 2 %",
)
Call = Callable[[], object]


@dataclass(frozen=True)
class Reading:
    """One way in one round: the median of its calls, and the SM clock right after them."""

    time_ms: float
    clock_mhz: float | None = None


@dataclass(frozen=True)
class Line:
    """One call. Differences are those of longca's time from the other ways' times."""

    call: str
    time_ms: float
    iqr: float
    against: Mapping[str, Difference]
    clock_mhz: Mapping[str, float | None]

    def verdict(self) -> str:
        """Returns "yes" within the tolerance of both flushed ways; else "no" with what is known about the
        cause."""
        worst = max(FLUSHED, key=lambda way: abs(self.against[way].relative))
        difference = self.against[worst]
        if abs(difference.relative) <= TOLERANCE:
            return "yes"
        if self.time_ms < FROM_MS:
            return f"no: {abs(difference.relative) * self.time_ms * 1e3:.1f} µs apart, on a call below 1 ms"
        own = self.clock_mhz["longca"]
        other = self.clock_mhz[worst]
        if (
            own
            and other
            and abs(other / own - 1) >= abs(difference.relative) / 2
            and (other > own) == (difference.relative > 0)
        ):
            return f"no: {worst} ran at a clock {percent(other / own - 1)} from longca's"
        if abs(difference.relative) - difference.iqr <= TOLERANCE:
            return "no: rounds differ by as much"
        return "no"


def line(call: str, readings: Mapping[str, Sequence[Reading]]) -> Line:
    """Summarizes the rounds of one call."""
    times = {way: [reading.time_ms for reading in of_way] for way, of_way in readings.items()}
    clocks = {
        way: [reading.clock_mhz for reading in of_way if reading.clock_mhz]
        for way, of_way in readings.items()
    }
    median = statistics.median(times["longca"])
    return Line(
        call,
        median,
        iqr(times["longca"]) / median,
        {way: difference(times["longca"], times[way]) for way in WAYS if way != "longca"},
        {way: statistics.median(of_way) if of_way else None for way, of_way in clocks.items()},
    )


def table(lines: Sequence[Line], caption: str) -> Table:
    rows = []
    records = []
    for line in lines:
        against = line.against
        clocks = (line.clock_mhz[way] for way in WAYS[:3])
        compared = [
            text
            for way in FLUSHED
            for text in (percent(against[way].relative), percent(against[way].iqr, signed=False))
        ]
        rows.append(
            (
                line.call,
                milliseconds(line.time_ms),
                percent(line.iqr, signed=False),
                *compared,
                percent(against["loop_no_flush"].relative),
                ", ".join(f"{clock:.0f}" if clock else "–" for clock in clocks),
                line.verdict(),
            )
        )
        records.append(
            {
                "call": line.call,
                "time_ms": line.time_ms,
                "iqr": line.iqr,
                **{f"{way}_{name}": value for way in against for name, value in asdict(against[way]).items()},
                **{f"{way}_clock_mhz": line.clock_mhz[way] for way in WAYS},
                "verdict": line.verdict(),
            }
        )
    return Table(NAME, caption, COLUMNS, tuple(rows), tuple(records), (COLUMNS[0], *COLUMNS[-2:]))


def calls(kinds: Sequence[str], device: torch.device) -> Iterator[tuple[str, Call]]:
    """Yields names and calls, each made when it is needed."""
    makers: dict[str, tuple[Callable[[int, torch.device], tuple[str, Call]], tuple[int, ...]]] = {
        "matmul": (_matmul, (2560, 4096, 8192, 16384, 24576)),
        "copy": (_copy, (128, 2048, 16384)),
        "torch_flash": (_torch_flash, (1024, 4096, 8192, 16384, 32768)),
        "flashmask": (_flashmask, (1024, 4096, 8192, 32768)),
    }
    for kind in kinds:
        make, sizes = makers[kind]
        for size in sizes:
            yield make(size, device)


def _matmul(size: int, device: torch.device) -> tuple[str, Call]:
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    return f"matmul, {size}³ bf16", lambda: a @ b


def _copy(mebibytes: int, device: torch.device) -> tuple[str, Call]:
    source = torch.ones(mebibytes << 20, device=device, dtype=torch.uint8)
    target = torch.empty_like(source)
    return f"device copy, {mebibytes} MiB", lambda: target.copy_(source)


def _heads(seqlen: int, device: torch.device, head_major: bool) -> tuple[torch.Tensor, ...]:
    """Returns q of 64 heads, k and v of 8, head dim 128."""
    return tuple(
        torch.randn(
            *((heads, seqlen) if head_major else (1, seqlen, heads)), 128, device=device, dtype=torch.bfloat16
        )
        for heads in (64, 8, 8)
    )


def _torch_flash(seqlen: int, device: torch.device) -> tuple[str, Call]:
    q, k, v = _heads(seqlen, device, head_major=False)
    attend = torch.ops.aten._flash_attention_forward
    return (
        f"torch's flash attention, causal, {format_length(seqlen)}",
        lambda: attend(q, k, v, None, None, seqlen, seqlen, 0.0, True, False, scale=None),
    )


def _flashmask(seqlen: int, device: torch.device) -> tuple[str, Call]:
    from longca.ops import flashmask_tuning
    from longca.ops.flashmask.forward import forward, make_mask

    q, k, v = _heads(seqlen, device, head_major=True)
    hidden_from = torch.full((1, seqlen, 1), seqlen, dtype=torch.int32, device=device)
    mask = make_mask(
        hidden_from, causal=True, seqlen_q=seqlen, tuning=flashmask_tuning(128), needs_backward=False
    )
    return f"FlashMask in Triton, causal, {format_length(seqlen)}", lambda: forward(q, k, v, mask, 128**-0.5)


class Timers:
    """Times a call in the four ways on one GPU."""

    def __init__(self, device: torch.device, gpu: Gpu | None) -> None:
        self._device = device
        self._gpu = gpu
        size = L2_FACTOR * torch.cuda.get_device_properties(device).L2_cache_size
        self._buffer = torch.empty(size, dtype=torch.uint8, device=device)

    def of(self, call: Call) -> dict[str, Callable[[], Reading]]:
        call()
        typical_ms = self._loop(call, LEAST_CALLS, flush=True)
        num_calls = num_calls_of(typical_ms)
        ways = {
            "longca": lambda: self._longca(call, num_calls),
            "do_bench": lambda: self._do_bench(call, num_calls, typical_ms),
            "loop": lambda: self._loop(call, num_calls, flush=True),
            "loop_no_flush": lambda: self._loop(call, num_calls, flush=False),
        }
        return {name: lambda way=way: self._read(way) for name, way in ways.items()}

    def _read(self, way: Callable[[], float]) -> Reading:
        time_ms = way()
        gpu = self._gpu
        return Reading(time_ms, None if gpu is None else gpu.read("ClockInfo", gpu.nvml.NVML_CLOCK_SM))

    def _longca(self, call: Call, num_calls: int) -> float:
        return statistics.median(
            time_calls(
                call, Measure.fixed(warmup=1, repeats=num_calls, max_seconds=60), self._device
            ).time_ms[0]
        )

    def _do_bench(self, call: Call, num_calls: int, typical_ms: float) -> float:
        from triton.testing import do_bench

        return do_bench(call, warmup=typical_ms, rep=num_calls * typical_ms, return_mode="median")

    def _loop(self, call: Call, num_calls: int, flush: bool) -> float:
        call()
        starts, ends = ([torch.cuda.Event(enable_timing=True) for _ in range(num_calls)] for _ in range(2))
        for start, end in zip(starts, ends, strict=True):
            if flush:
                self._buffer.zero_()
            start.record()
            call()
            end.record()
        torch.cuda.synchronize(self._device)
        return statistics.median(start.elapsed_time(end) for start, end in zip(starts, ends, strict=True))


def num_calls_of(typical_ms: float) -> int:
    """Returns the number of calls in a round, for a call that lasts so long."""
    return min(max(round(ROUND_MS / typical_ms), LEAST_CALLS), MOST_CALLS)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.timer.agreement", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each way (7)")
    parser.add_argument(
        "--only", type=lambda text: names(text, KINDS), default=list(KINDS), help=f"some of {','.join(KINDS)}"
    )
    add_options(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    if not torch.cuda.is_available():
        print("This benchmark needs a GPU, and torch finds none here.", file=sys.stderr)
        return 2
    device = torch.device("cuda", 0)
    lines = []
    with open_gpu(device) as gpu:
        timers = Timers(device, gpu)
        for name, call in calls(options.only, device):
            lines.append(line(name, in_rounds(timers.of(call), options.rounds)))
            print(f"{name}: {lines[-1].time_ms:.3f} ms, {lines[-1].verdict()}", flush=True)
            del call
            torch.cuda.empty_cache()
    caption = (
        f"{machine(device)}. Median of {options.rounds} rounds, in each of which every way times the same "
        "call; differences are those of longca's time from the other's, in the same round."
    )
    table(lines, caption).publish(options)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
