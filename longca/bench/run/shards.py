"""Cutting a study into jobs of about equal length. Pure and quick: the workflow does so each time it is read."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from longca.core.cell import Cell
from longca.core.plugin import Registry
from longca.core.record import Work
from longca.core.study import Measure

OVERHEAD_SECONDS = 2.0  # of a cell but its timing: 0.4 s in the mean on an H200, and some seconds where a compiler has nothing kept
RATE_FLOPS = 100e12  # sustained on one device; generous for a CPU, whose short cells are all overhead
RATE_BYTES = 1e12  # a second, to and from one device's memory


@dataclass(frozen=True)
class Shard:
    """Cells that one job measures: kernels on one device, or context parallelism."""

    name: str
    """part of file names: kind, kernel or number of ranks where it has but one, number"""
    kind: Literal["kernel", "cp"]
    world: int
    """most ranks of a cell"""
    cells: tuple[Cell, ...]
    minutes: float
    """estimated"""


def estimate_seconds(cell: Cell, rate_flops: float, measure: Measure | None = None, density: float | None = None,
                     work: Work | None = None) -> float:
    """A cell's duration. Without `density` no mask is looked at and the estimate is an upper one.

    Args:
        rate_flops: sustained FLOP/s of one device.
        measure: how it is measured; the defaults if not given.
        density: share of pairs that is visible; if not given, all, or what the mask's own `density` says.
        work: of a control, which has no pairs.
    """
    measure = measure or Measure()
    call_s = _attention_seconds(cell, rate_flops, density) if work is None else _control_seconds(work, rate_flops)
    warmup_s = min(measure.warmup * call_s, measure.max_seconds + call_s)  # the call in which time runs out is the last one
    timed_s = min(measure.repeats * call_s, max(measure.max_seconds, 3 * call_s))
    return min(OVERHEAD_SECONDS + warmup_s + timed_s, measure.timeout_s)


def _attention_seconds(cell: Cell, rate_flops: float, density: float | None) -> float:
    share = float(cell.mask_params.get("density", 1.0)) if density is None else density
    return cell.flops(cell.seqlen**2, 1) * share / (rate_flops * cell.world)


def _control_seconds(work: Work, rate_flops: float) -> float:
    return (work.duration_ms or 0.0) / 1e3 + (work.flops or 0) / rate_flops + (work.traffic_bytes or 0) / RATE_BYTES


def shards(cells: Iterable[Cell], minutes: float, rate_flops: float = RATE_FLOPS, measure: Measure | None = None) -> list[Shard]:
    """The cells in jobs of at most about `minutes`, in their order; the same cells give the same shards.

    A job's cells share their kernel or, since all methods of context parallelism run in the same processes, their number of ranks. A
    cell longer than `minutes` is a job of its own.
    """
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(f"cp-w{cell.world}" if cell.kind == "cp" else f"kernel-{cell.kernel}", []).append(cell)
    return [shard for name, group in groups.items() for shard in _cut(name, group, minutes, rate_flops, measure)]


def shards_of_one_machine(cells: Iterable[Cell], rate_flops: float = RATE_FLOPS, measure: Measure | None = None) -> list[Shard]:
    """One job of all kernels and one of context parallelism: jobs that cannot run at the same time would only start more processes.

    The cells of all kernels are then in one random order, too (`longca.bench.run.order`).
    """
    kinds: dict[str, list[Cell]] = {}
    for cell in cells:
        kinds.setdefault(cell.kind, []).append(cell)
    return [shard for kind, group in kinds.items() for shard in _cut(kind, group, math.inf, rate_flops, measure)]


def _cut(name: str, cells: list[Cell], minutes: float, rate_flops: float, measure: Measure | None) -> list[Shard]:
    pieces: list[list[Cell]] = []
    filled: list[float] = []  # seconds of each piece
    kernels = {name: Registry("kernel").load(name) for name in {cell.kernel for cell in cells}}
    for cell in cells:
        seconds = estimate_seconds(cell, rate_flops, measure, work=kernels[cell.kernel].work(cell))
        if not pieces or filled[-1] + seconds > minutes * 60:
            pieces.append([])
            filled.append(0.0)
        pieces[-1].append(cell)
        filled[-1] += seconds
    return [Shard(f"{name}-{number}", cells[0].kind, max(cell.world for cell in members), tuple(members), seconds / 60)
            for number, (members, seconds) in enumerate(zip(pieces, filled, strict=True))]
