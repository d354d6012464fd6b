"""Tests of the comparison of timers, on made-up readings."""

from pathlib import Path

import pytest
import torch

from benchmarks.timer.agreement import (
    KINDS,
    LEAST_CALLS,
    MOST_CALLS,
    WAYS,
    Line,
    Reading,
    line,
    main,
    num_calls_of,
    parse,
    table,
)


def readings(
    do_bench: float = 2.0,
    loop: float = 2.0,
    longca: float = 2.0,
    clock: float | None = 1800.0,
    noise: float = 0.0,
) -> Line:
    times = {"longca": longca, "do_bench": do_bench, "loop": loop, "loop_no_flush": loop}
    clocks = {way: 1800.0 if way == "longca" else clock for way in WAYS}
    return line(
        "call",
        {
            way: [Reading(time * (1 + noise * turn * (way == "loop")), clocks[way]) for turn in range(3)]
            for way, time in times.items()
        },
    )


def test_a_line_compares_within_each_round() -> None:
    actual = readings(do_bench=1.0)
    assert (actual.time_ms, actual.iqr) == (2.0, 0.0)
    assert actual.against["do_bench"].relative == 1.0 and actual.against["loop"].relative == 0.0
    assert actual.clock_mhz == dict.fromkeys(WAYS, 1800.0)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (readings(do_bench=1.97), "yes"),
        (readings(do_bench=2.03, loop=1.97), "yes"),
        (readings(do_bench=1.9), "no"),
        (readings(do_bench=1.9, clock=1880.0), "no: do_bench ran at a clock +4.4 % from longca's"),
        (readings(do_bench=1.9, clock=1720.0), "no"),  # a lower clock cannot make it faster
        (readings(loop=2.1, clock=1720.0), "no: loop ran at a clock -4.4 % from longca's"),
        (readings(do_bench=1.9, clock=None), "no"),
        (readings(loop=1.9, noise=0.05), "yes"),
        (readings(loop=1.8, noise=0.06), "no: rounds differ by as much"),
        (readings(longca=0.05, do_bench=0.048, loop=0.05), "no: 2.1 µs apart, on a call below 1 ms"),
    ],
)
def test_verdicts(found: Line, verdict: str) -> None:
    assert found.verdict() == verdict


def test_table_has_a_cell_for_each_column() -> None:
    made = table([readings(), readings(do_bench=1.0, clock=None)], "caption")
    assert all(len(row) == len(made.columns) for row in made.rows)
    assert made.rows[0][0] == "call" and made.rows[0][-2:] == ("1800, 1800, 1800", "yes")
    assert made.rows[1][3] == "+100.0 %" and made.rows[1][-2] == "1800, –, –"
    assert made.records[1]["do_bench_relative"] == 1.0 and made.records[1]["loop_clock_mhz"] is None


def test_rounds_take_about_as_long_for_every_call() -> None:
    assert num_calls_of(0.05) == MOST_CALLS and num_calls_of(50) == LEAST_CALLS
    assert num_calls_of(6) == 10


def test_options() -> None:
    assert parse([]).only == list(KINDS) and parse([]).write == []
    options = parse(["--only", "copy,matmul", "--rounds", "3", "--write", "page.md"])
    assert (options.only, options.rounds, options.write) == (["matmul", "copy"], 3, [Path("page.md")])
    with pytest.raises(SystemExit):
        parse(["--only", "tea"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_says_that_it_needs_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "needs a GPU" in capsys.readouterr().err
