"""Predicts up to 96 ranks from one GPU: the kernels of each rank are timed on it, the messages between them
are modelled.

    python -m benchmarks.cp.virtual [--worlds 2,8,32,96] [--tokens 8K] [--kernel band] [--seconds 90]
                                    [--write docs/results/h200/context-parallelism.md]
    python -m benchmarks.cp.virtual --device cpu --worlds 3 --tokens 64 --heads 4:2 --head-dim 16 --kernel
    naive

For each strategy, number of ranks and mask it takes the work partition that the strategy itself makes, times
its kernel calls rank by rank at their shapes on random values, and makes a timeline of these times and the
bytes that move. Times are measured, timelines are
modelled: no number here is a measurement of several GPUs. If time is short only some ranks are timed, first
the one with most to compute and the median one; the others' steps are interpolated by pairs. Lines start in
the order of `--strategies`, then of `--worlds`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.common.text import machine
from benchmarks.cp.compare import BASELINE, MASKS, add_chunks, both, cell_of, same_area
from benchmarks.cp.step_times import Clock
from benchmarks.cp.virtual_ranks import DIRECTIONS, VirtualRanks
from longca.core.call import BACKWARD_FLOPS_RATIO
from longca.core.plugin import Registry
from longca.core.units import format_length, parse_heads, parse_length
from longca.cp.contract import HeadStrategy
from longca.cp.schedule.planner import LinkSpeeds
from longca.cp.schedule.timeline import rank_times
from longca.kernels.contract import Problem
from longca.lab.bench.check.inputs import DTYPES
from longca.lab.studies.cell import Cell
from longca.lab.studies.grid import Measure
from longca.lab.studies.masks import cell_mask
from tools.table import Table, add_options, write_records

STRATEGIES = ("ring_p2p", "ring_allgather", "usp", "loongtrain", "ulysses")
MEASURE = Measure.fixed(warmup=2, repeats=5, max_seconds=0.2)
# of its even share of the time: a line spends no more on ranks beyond the fewest; the rest is for lines that
# need more
SHARE = 0.5
NAME = "cp_virtual"
STEPS = "cp_virtual_steps"  # the raw times, as CSV beside the table's


class Bench:
    """Makes the lines of one kernel on one device."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.device = options, torch.device(options.device)
        self.kernel = Registry("kernel").load(options.kernel)
        self.clock = Clock(self.kernel, self.device, MEASURE)
        self.links = LinkSpeeds(
            options.near * 1e9,
            options.far * 1e9,
            options.message * 1e-6,
            ranks_per_node=options.ranks_per_host,
        )
        self.steps: list[dict[str, Any]] = []
        self._baselines: dict[tuple[str, int], dict[str, float]] = {}

    def line(self, mask: str, world: int, strategy: str, deadline: float) -> dict[str, Any]:
        """Returns a record; its `reason` says why there are no times."""
        name = self._name(mask, world, strategy)
        try:
            return name | self._line(mask, world, strategy, deadline)
        except Exception as error:  # any kernel may raise anything
            return name | {"reason": f"{type(error).__name__}: {error}"}
        finally:
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    def _line(self, mask: str, world: int, strategy: str, deadline: float) -> dict[str, Any]:
        cell = self._cell(mask, world, strategy)
        plugin, problem = Registry("strategy").load(strategy), self._problem(cell)
        assert isinstance(plugin, HeadStrategy), "`main` has asked"
        reason = plugin.refusal(problem.mask, cell.call_spec, world, self.kernel, self.device.type)
        if reason is not None:
            return {"reason": reason}
        ranks = VirtualRanks(
            plugin.partition_work(problem, self.kernel, world, self.options.chunks), problem, self.clock
        )
        ranks.time(deadline)
        self.steps += [
            {"mask": mask, "world": world, "strategy": strategy} | step for step in ranks.timed_steps()
        ]
        found: dict[str, Any] = {
            "how": ranks.how,
            "timed_ranks": int(ranks.timed.sum()) * ranks.work.mesh.heads,
        }
        baseline = self.baseline(mask, world)
        for direction in DIRECTIONS:
            times = rank_times(
                ranks.work,
                problem.call_spec,
                ranks.step_s(direction),
                self.links,
                backward=direction == "bwd",
            )
            flops = _flops(cell, problem, direction) / world
            modelled = flops / times.total_s.max() / 1e12
            found |= {
                f"{direction}_computed_tflops": flops / times.compute_s.max() / 1e12,
                f"{direction}_imbalance": float(times.compute_s.max() / times.compute_s.mean()),
                f"{direction}_modelled_tflops": modelled,
                f"{direction}_of_alone": modelled / baseline[direction],
                f"{direction}_exposed": float(times.exposed.max()),
            }
        return found

    def baseline(self, mask: str, world: int) -> dict[str, float]:
        """Returns TFLOP/s of the kernel on one GPU, on the same pattern at the length that has the area of
        one rank."""
        if (mask, world) not in self._baselines:
            cell = self._cell(mask, world, BASELINE)
            cell = self._cell(mask, world, BASELINE, same_area(cell, world))
            problem = self._problem(cell)
            seconds = zip(DIRECTIONS, self.clock.baseline(problem), strict=True)
            self._baselines[mask, world] = {
                direction: _flops(cell, problem, direction) / value / 1e12 for direction, value in seconds
            }
        return self._baselines[mask, world]

    def baseline_lines(self) -> list[dict[str, Any]]:
        return [
            {
                **self._name(mask, world, BASELINE),
                "how": "one device, the area of one rank",
                "timed_ranks": 1,
                **{f"{direction}_computed_tflops": value for direction, value in found.items()},
            }
            for (mask, world), found in self._baselines.items()
        ]

    def _name(self, mask: str, world: int, strategy: str) -> dict[str, Any]:
        heads = ":".join(map(str, self.options.heads))
        return {
            "mask": mask,
            "world": world,
            "tokens": self.options.tokens,
            "heads": heads,
            "kernel": self.options.kernel,
            "strategy": strategy,
        }

    def _cell(self, mask: str, world: int, strategy: str, seqlen: int = 0) -> Cell:
        return cell_of(
            mask, self.options.kernel, strategy, world, seqlen or self.options.tokens * world, self.options
        )

    def _problem(self, cell: Cell) -> Problem:
        return Problem(
            cell_mask(cell),
            cell.num_q_heads,
            cell.num_kv_heads,
            cell.head_dim,
            DTYPES[cell.dtype],
            self.device,
            needs_backward=True,
        )


def _flops(cell: Cell, problem: Problem, direction: str) -> float:
    forward = cell.model_copy(update={"direction": "fwd"}).flops(problem.mask.area, problem.mask.num_groups)
    return forward * (1.0 if direction == "fwd" else BACKWARD_FLOPS_RATIO)


def try_all(options: argparse.Namespace) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns (lines, timed steps), both by mask, ranks and strategy. Each line gets a share of the time that
    is left."""
    bench, lines, end = Bench(options), [], time.monotonic() + options.seconds
    wanted = [
        (mask, world, strategy)
        for strategy in options.strategies
        for world in options.worlds
        for mask in options.masks
    ]
    for number, name in enumerate(wanted):
        now = time.monotonic()
        if now > end:
            print(f"time is over: {len(wanted) - number} of {len(wanted)} lines are left out", flush=True)
            break
        lines.append(bench.line(*name, deadline=now + SHARE * (end - now) / (len(wanted) - number)))
        print(f"{time.monotonic() - end + options.seconds:5.0f} s", *told(lines[-1]), flush=True)

    def place(line: dict[str, Any]) -> tuple[int, int, int]:
        return (
            options.masks.index(line["mask"]),
            options.worlds.index(line["world"]),
            (BASELINE, *STRATEGIES).index(line["strategy"]),
        )

    return sorted([*bench.baseline_lines(), *lines], key=place), sorted(bench.steps, key=place)


def told(line: dict[str, Any]) -> tuple[str, ...]:
    names = (line["mask"], str(line["world"]), line["strategy"])
    if "reason" in line:
        return (*names, "–", " ".join(line["reason"].split())[:200])
    computed = f"{both(line, 'computed_tflops', '#.3g')} TFLOP/s computed"
    if line["strategy"] == BASELINE:
        return (*names, computed, line["how"])
    return (
        *names,
        computed,
        f"{both(line, 'imbalance', '.2f')} imbalance",
        f"{both(line, 'modelled_tflops', '#.3g')} modelled",
        f"{both(line, 'exposed', '.1%')} exposed",
        f"{line['timed_ranks']} timed",
        line["how"],
    )


def rows_of(lines: Sequence[dict[str, Any]], strategies: Sequence[str]) -> list[tuple[str, ...]]:
    """Makes a row for each mask and number of ranks: TFLOP/s computed → modelled of each strategy."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for line in lines:
        cells = found.setdefault((line["mask"], str(line["world"])), {})
        texts = [] if "reason" in line else [both(line, "computed_tflops", ".0f")]
        if texts and line["strategy"] != BASELINE:
            texts.append(both(line, "modelled_tflops", ".0f"))
        cells[line["strategy"]] = " → ".join(texts) or "–"
    return [
        (*names, *(cells.get(strategy, "") for strategy in (BASELINE, *strategies)))
        for names, cells in found.items()
    ]


def publish(lines: list[dict[str, Any]], steps: list[dict[str, Any]], options: argparse.Namespace) -> None:
    num_q_heads, num_kv_heads = options.heads
    caption = (
        f"Virtual ranks of {format_length(options.tokens)} tokens, `{options.kernel}`, "
        f"{num_q_heads}:{num_kv_heads} heads; {machine(torch.device(options.device))}. TFLOP/s of a GPU, "
        "forward / backward. **Measured on this one device, without any message:** the baseline, and before "
        "each arrow the slowest rank's kernels, merges and sums. **Modelled, not measured on several "
        f"devices:** behind it, the same with messages. These at {options.near:g} GB/s within a host of "
        f"{options.ranks_per_host}, {options.far:g} GB/s between hosts, {options.message:g} µs each. Empty "
        "where there was no time left."
    )
    records = tuple(
        dict.fromkeys(("reason", *(key for line in lines for key in line)), "") | line for line in lines
    )
    options.out.mkdir(parents=True, exist_ok=True)
    write_records(options.out, STEPS, steps)
    columns = ("mask", "ranks", "baseline", *options.strategies)
    Table(NAME, caption, columns, tuple(rows_of(lines, options.strategies)), records, columns[:1]).publish(
        options
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cp.virtual", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument(
        "--worlds",
        type=lambda text: [int(number) for number in text.split(",")],
        default=[2, 8, 32, 96],
        help="numbers of ranks (2,8,32,96)",
    )
    parser.add_argument("--tokens", type=parse_length, default=8192, help="of each rank (8K)")
    parser.add_argument("--heads", type=parse_heads, default=(64, 8))
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--kernel", default="band")
    parser.add_argument("--masks", type=lambda text: text.split(","), default=list(MASKS))
    parser.add_argument("--strategies", type=lambda text: text.split(","), default=list(STRATEGIES))
    add_chunks(parser)
    parser.add_argument(
        "--seconds", type=float, default=90.0, help="no further line is begun after so long (90)"
    )
    parser.add_argument(
        "--near",
        type=float,
        default=LinkSpeeds.intra_node_bytes_per_s / 1e9,
        metavar="GB/S",
        help="between GPUs of one host",
    )
    parser.add_argument(
        "--far",
        type=float,
        default=LinkSpeeds.inter_node_bytes_per_s / 1e9,
        metavar="GB/S",
        help="between hosts",
    )
    parser.add_argument(
        "--message",
        type=float,
        default=LinkSpeeds.message_s * 1e6,
        metavar="US",
        help="of a message beside its bytes",
    )
    parser.add_argument("--ranks-per-host", type=int, default=LinkSpeeds.ranks_per_node)
    add_options(parser)
    options = parser.parse_args(arguments)
    unknown = [name for name in options.strategies if name not in STRATEGIES]
    if unknown:
        parser.error(
            f"{', '.join(unknown)}: only what makes a division can be taken apart: {', '.join(STRATEGIES)}"
        )
    publish(*try_all(options), options)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
