"""Shards: the jobs of about equal length into which a study is split. Pure and quick, since the workflow does
it each time it is read."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from longca.core import Registry, Work
from longca.lab.bench.measure.timing.protocol import MIN_SAMPLES, TIMED_SHARE, least_warm_up_seconds
from longca.lab.studies import Cell, Measure
from longca.lab.studies.cell import SETTLE_SECONDS
from longca.lab.studies.playoff.case import may_play
from longca.lab.studies.playoff.rules import PlayoffRules

# of a cell without its timing: 0.4 s on average on an H200, some seconds where a compiler has nothing cached
OVERHEAD_SECONDS = 2.0
# of a play-off of calls whose times scatter by 1 %, until their ratio is known within 0.3 %
USUAL_ROUNDS = 60
RATE_FLOPS = 100e12  # sustained on one device; generous for a CPU, whose short cells are all overhead
RATE_BYTES = 1e12  # bytes a second to and from the memory of one device
# of warming a GPU that is steady at once: two blocks of the protocol
STEADY_SECONDS = 0.5
STEADY_CALLS = 8
# times the least number: one more look at the interval of the median; what a GPU that rests needs at most
MORE_SAMPLES = 1.5

Measured = Measure | Callable[[Cell], Measure] | None
"""the way cells are measured, or each cell's; the defaults if None"""


@dataclass(frozen=True)
class Shard:
    """The cells of one job: of kernels on one device, of context parallelism, or on one machine of both."""

    name: str
    """part of file names: kind or "all", kernel or number of ranks if there is only one, number"""
    kind: Literal["kernel", "cp"]
    """cp if any of its cells is of context parallelism"""
    world: int
    """largest number of ranks of a cell"""
    cells: tuple[Cell, ...]
    minutes: float
    """estimated"""


def estimate_seconds(
    cell: Cell,
    rate_flops: float,
    measure: Measure | None = None,
    density: float | None = None,
    work: Work | None = None,
    *,
    on_gpu: bool = True,
) -> float:
    """The estimated duration of a cell. Without `density` no mask is built and the estimate is an upper
    bound.

    Args:
        rate_flops: sustained FLOP/s of one device.
        measure: settings of the measurement; the defaults if not given.
        density: share of visible pairs; if not given, the mask's parameter `density`, or 1.
        work: work of a control, which has no pairs.
        on_gpu: calls are paced, and their times differ little. On a CPU they come at once, and samples go on
            to their limit.
    """
    measure = measure or Measure()
    call_s = (
        _attention_seconds(cell, rate_flops, density) if work is None else _control_seconds(work, rate_flops)
    )
    if cell.sustained:
        calls_s = max(measure.warmup * call_s, SETTLE_SECONDS) + _fixed_seconds(call_s, measure)
    else:
        step_s = call_s / measure.duty if on_gpu else call_s
        calls_s = _warm_up_seconds(step_s, measure, on_gpu) + _timed_seconds(step_s, measure, on_gpu)
        # the call in which time runs out is the last one, and there are three in any case
        calls_s = min(calls_s, max(TIMED_SHARE * measure.timeout_s + step_s, MIN_SAMPLES * step_s))
    return min(OVERHEAD_SECONDS + calls_s, measure.timeout_s)


def _warm_up_seconds(step_s: float, measure: Measure, on_gpu: bool) -> float:
    """Seconds of the warm-up calls, `step_s` from one to the next; the call in which time runs out is the
    last one."""
    least_s = min(measure.warmup * step_s, least_warm_up_seconds(measure) + step_s)
    steady_s = max(STEADY_SECONDS if on_gpu else 0.0, STEADY_CALLS * step_s)
    return max(least_s, min(steady_s, measure.warm_seconds + step_s) if measure.warm_seconds else 0.0)


def _timed_seconds(step_s: float, measure: Measure, on_gpu: bool) -> float:
    """Seconds of the samples."""
    if not measure.precision:
        return _fixed_seconds(step_s, measure)
    expected = MORE_SAMPLES * measure.repeats if on_gpu else math.inf
    return max(
        measure.repeats * step_s, min(min(expected, measure.most_repeats) * step_s, measure.max_seconds)
    )


def _fixed_seconds(step_s: float, measure: Measure) -> float:
    return min(measure.repeats * step_s, max(measure.max_seconds, MIN_SAMPLES * step_s))


def estimate_playoff_seconds(
    cell: Cell,
    num_methods: int,
    rules: PlayoffRules,
    rate_flops: float,
    measure: Measure | None = None,
    density: float | None = None,
) -> float:
    """The estimated duration of a play-off of a case; 0 where there is nobody to play.

    Args:
        cell: of the case.
        num_methods: the number of methods that run it. The players are not yet known, so the least number
        of players is assumed.
        rate_flops: as of `estimate_seconds`; likewise `measure` and `density`.
    """
    num_players = min(num_methods, rules.first)
    if num_players < 2 or not rules.has_case(cell):
        return 0.0
    measure = measure or Measure()
    round_s = num_players * _attention_seconds(cell, rate_flops, density)
    usual_s = min(USUAL_ROUNDS, rules.max_rounds) * round_s
    timed_s = min(usual_s, max(rules.max_seconds, rules.min_rounds * round_s))
    return num_players * OVERHEAD_SECONDS + measure.warmup * round_s + timed_s


def _attention_seconds(cell: Cell, rate_flops: float, density: float | None) -> float:
    share = float(cell.mask_params.get("density", 1.0)) if density is None else density
    return cell.flops(cell.num_pairs, 1) * share / (rate_flops * cell.world)


def _control_seconds(work: Work, rate_flops: float) -> float:
    return (
        (work.duration_ms or 0.0) / 1e3
        + (work.flops or 0) / rate_flops
        + (work.traffic_bytes or 0) / RATE_BYTES
    )


def shards(
    cells: Iterable[Cell], minutes: float, rate_flops: float = RATE_FLOPS, measure: Measured = None
) -> list[Shard]:
    """The cells as jobs of at most about `minutes`, in their order. The same cells always give the same
    shards.

    The cells of a job have the same kernel or, for context parallelism, the same number of ranks: its methods
    run in the same processes.
    A cell longer than `minutes` is a job of its own.
    """
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(f"cp-w{cell.world}" if cell.kind == "cp" else f"kernel-{cell.kernel}", []).append(
            cell
        )
    return [
        shard for name, group in groups.items() for shard in _cut(name, group, minutes, rate_flops, measure)
    ]


def playoff_minutes(cells: Iterable[Cell], rules: PlayoffRules, rate_flops: float = RATE_FLOPS) -> float:
    """The estimated duration of a job that plays off all cases of these cells. Masks are not built, so it is
    an upper bound."""
    methods: dict[tuple[object, ...], list[Cell]] = {}
    for cell in filter(may_play, cells):  # not by `case_id`, which takes long for a large study
        key = (
            cell.mask,
            str(cell.mask_params),
            cell.corpus,
            cell.seqlen,
            cell.new_tokens,
            cell.num_q_heads,
            cell.num_kv_heads,
            cell.head_dim,
            cell.dtype,
            cell.direction,
            cell.seed,
            cell.input_values,
        )
        methods.setdefault(key, []).append(cell)
    return (
        sum(
            estimate_playoff_seconds(of_case[0], len(of_case), rules, rate_flops)
            for of_case in methods.values()
        )
        / 60
    )


def shards_of_one_machine(
    cells: Iterable[Cell], rate_flops: float = RATE_FLOPS, measure: Measured = None
) -> list[Shard]:
    """One job of all cells, "all-0", or "kernel-0" or "cp-0" where they are of one kind. More jobs could not
    run at the same time and would start more processes: each its runner, its judge and its workers.

    The cells are then also in one random order (`longca.lab.bench.run.runner.shuffled`).
    """
    together = list(cells)
    kinds = {cell.kind for cell in together}
    name = kinds.pop() if len(kinds) == 1 else "all"
    return _cut(name, together, math.inf, rate_flops, measure)


def _cut(name: str, cells: list[Cell], minutes: float, rate_flops: float, measure: Measured) -> list[Shard]:
    pieces: list[list[Cell]] = []
    filled: list[float] = []  # seconds of each piece
    kernels = {name: Registry("kernel").load(name) for name in {cell.kernel for cell in cells}}
    for cell in cells:
        of_cell = measure(cell) if callable(measure) else measure
        work = kernels[cell.kernel].work(cell.call_spec, cell.seqlen)
        seconds = estimate_seconds(cell, rate_flops, of_cell, work=work)
        if not pieces or filled[-1] + seconds > minutes * 60:
            pieces.append([])
            filled.append(0.0)
        pieces[-1].append(cell)
        filled[-1] += seconds
    return [
        Shard(
            f"{name}-{number}",
            "cp" if any(cell.kind == "cp" for cell in members) else "kernel",
            max(cell.world for cell in members),
            tuple(members),
            seconds / 60,
        )
        for number, (members, seconds) in enumerate(zip(pieces, filled, strict=True))
    ]
