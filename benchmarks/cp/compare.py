"""Checks context-parallel strategies on the GPUs at hand, and times them beside their kernel on one GPU.

    python -m benchmarks.cp.compare [--ranks 4] [--tokens 8K] [--kernels band,fa3] [--seconds 80]
    torchrun --nproc-per-node 4 -m benchmarks.cp.compare
    python -m benchmarks.cp.compare --device cpu --ranks 2 --tokens 128 --heads 4:2 --head-dim 16
    python -m benchmarks.cp.compare --kernels band --strategies ulysses,usp --chunks 1:2:1
    python -m benchmarks.cp.compare --kernels band --strategies ring_p2p --messages symmetric

Every strategy with every kernel and mask is first checked in full at a few hundred tokens against float64,
forward and backward, and then timed. TFLOP/s are of the mask's exact area, for each GPU; the slowest rank
counts. The single-GPU baseline is the same kernel on one
GPU, all GPUs at once, on the same pattern at the length that has the area of one rank; the CSV calls it
`alone`. A line is printed for each; the table at the end has a column for each strategy, and the CSV
everything.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.common.text import machine
from benchmarks.cp.ranks import add_rank_options, median_ms, run_on_ranks
from longca.core import BACKWARD_FLOPS_RATIO, Registry, format_length, parse_heads, parse_length
from longca.cp import HeadStrategy
from longca.cp.comm.backend import Comm
from longca.kernels import Problem
from longca.lab.bench.check.inputs import DTYPES, Inputs, make_inputs
from longca.lab.bench.check.oracle import Oracle, wrong
from longca.lab.studies import Cell, Measure, cell_mask
from longca.masks import build_mask
from tools.table import Table, add_options

MASKS = ("full", "causal", "causal_document", "full_document", "global_sliding_window")
MEASURE = Measure.fixed(warmup=2, repeats=7, max_seconds=1.0)
BASELINE = "alone"  # the single-GPU baseline, as the CSV files name it
DIRECTIONS = ("fwd", "bwd")
CHECKED_TOKENS = 509  # over all ranks: divides nothing


@dataclass(frozen=True)
class Line:
    """One line of the table; it is the same on all ranks."""

    comm: Comm
    options: argparse.Namespace
    kernel: str
    mask: str
    strategy: str

    def cell(self, seqlen: int) -> Cell:
        return cell_of(self.mask, self.kernel, self.strategy, self.comm.world, seqlen, self.options)

    def run(self, baseline: dict[str, float]) -> dict[str, Any]:
        """Returns a record; its `reason` says why there are no times."""
        line = {"mask": self.mask, "kernel": self.kernel, "strategy": self.strategy}
        whole = self.options.tokens * self.comm.world
        small = self.cell(min(CHECKED_TOKENS, whole))
        reason = self._refusal(self.cell(whole)) or self._refusal(small)
        if reason is not None:
            return line | {"reason": reason}
        call = self._prepared(small)
        line |= {"error": call.judged()}
        call = self._prepared(
            self.cell(same_area(self.cell(whole), self.comm.world))
            if self.strategy == BASELINE
            else self.cell(whole)
        )
        times = call.times_ms()
        shares = 1 if self.strategy == BASELINE else self.comm.world
        for direction, ratio in zip(DIRECTIONS, (1.0, BACKWARD_FLOPS_RATIO), strict=True):
            flops = call.cell.model_copy(update={"direction": "fwd"}).flops(
                call.problem.mask.area, call.problem.mask.num_groups
            )
            line[f"{direction}_tflops"] = flops * ratio / shares / times[direction] / 1e9
            line[f"{direction}_of_alone"] = line[f"{direction}_tflops"] / baseline.get(
                direction, line[f"{direction}_tflops"]
            )
            line[f"{direction}_moved_mb"] = call.moved[direction] / 1e6
        if self.options.trace is not None:
            call.trace(
                self.options.trace / f"{self.mask}-{self.kernel}-{self.strategy}-rank{self.comm.rank}.json"
            )
        return line | {"how": "; ".join(call.prepared.notes[:2])}

    def _refusal(self, cell: Cell) -> str | None:
        kernel = Registry("kernel").load(self.kernel)
        mask = cell_mask(cell)
        device_type = self.comm.device.type
        if cell.strategy is None:
            return kernel.supports(cell.call_spec, mask.traits, device_type)
        strategy = Registry("strategy").load(cell.strategy)
        return strategy.available(device_type) or strategy.refusal(
            mask, cell.call_spec, cell.world, kernel, device_type
        )

    def _prepared(self, cell: Cell) -> Call:
        problem = Problem(
            cell_mask(cell),
            cell.num_q_heads,
            cell.num_kv_heads,
            cell.head_dim,
            DTYPES[cell.dtype],
            self.comm.device,
            needs_backward=True,
        )
        kernel = Registry("kernel").load(self.kernel)
        inputs = make_inputs(cell, self.comm.device)
        if cell.strategy is None:
            return Call(self.comm, cell, problem, kernel.prepare(problem), inputs)
        strategy = Registry("strategy").load(cell.strategy)
        how = {"weights": self.options.chunks} if isinstance(strategy, HeadStrategy) else {}
        return Call(self.comm, cell, problem, strategy.prepare(problem, kernel, self.comm, **how), inputs)


class Call:
    """A prepared kernel or strategy and its inputs."""

    def __init__(self, comm: Comm, cell: Cell, problem: Problem, prepared: Any, inputs: Inputs) -> None:
        self.comm = comm
        self.cell = cell
        self.problem = problem
        self.prepared = prepared
        self.inputs = inputs
        self.moved: dict[str, int] = {}
        whole = (inputs.q_THD, inputs.k_TGD, inputs.v_TGD, inputs.dout_THD)
        if cell.strategy is None:
            self.positions = torch.arange(cell.seqlen)
            tensors = tuple(prepared.to_layout(x) for x in whole)
        else:
            self.positions = torch.from_numpy(prepared.shard.positions_L)
            tensors = tuple(x[self.positions.to(comm.device)] for x in whole)
        *self.qkv, self.dout = tensors

    def judged(self) -> float:
        """Returns the largest error as a share of what is allowed; rank 0 finds it."""
        forward = self.prepared.forward(*self.qkv)
        value = [forward.out, *self.prepared.backward(forward, self.dout)]
        if self.cell.strategy is None:
            value = [self.prepared.from_layout(x) for x in value]
        else:
            positions = [torch.from_numpy(part) for part in self.comm.gather_arrays(self.positions.numpy())]
            parts = [self.comm.gather_rows(x, [len(part) for part in positions]) for x in value]
            inverse = torch.cat(positions).argsort().to(self.comm.device)
            value = [torch.cat(part)[inverse] for part in parts if part is not None]
        verdict: tuple[str | None, float] = (None, 0.0)
        if value and self.comm.rank == 0:
            accuracy = Oracle(self.problem, self.inputs).judge(value[0], None, (value[1], value[2], value[3]))
            verdict = (
                wrong(accuracy),
                max(error / accuracy.budget[name] for name, error in accuracy.relative.items()),
            )
        reason, worst = self.comm.gather(verdict)[0]
        if reason is not None:
            raise RuntimeError(f"{self.cell.title}: {reason}")
        return worst

    def times_ms(self) -> dict[str, float]:
        """Returns the median over iterations of the slowest rank, by direction."""
        forward = self.prepared.forward(*self.qkv)
        calls: dict[str, Callable[[], object]] = {
            "fwd": lambda: self.prepared.forward(*self.qkv),
            "bwd": lambda: self.prepared.backward(forward, self.dout),
        }
        values = {}
        for direction, call in calls.items():
            before = self.comm.moved_bytes
            call()
            self.moved[direction] = self.comm.moved_bytes - before
            values[direction] = median_ms(self.comm, call, MEASURE)
        return values

    def trace(self, path: Path) -> None:
        """Writes a timeline of one forward and one backward call."""
        from torch.profiler import profile

        path.parent.mkdir(parents=True, exist_ok=True)
        self.comm.barrier()
        with profile() as timeline:
            self.prepared.backward(self.prepared.forward(*self.qkv), self.dout)
            if self.comm.device.type == "cuda":
                torch.cuda.synchronize()
        timeline.export_chrome_trace(str(path))


def cell_of(
    mask: str, kernel: str, strategy: str, world: int, seqlen: int, options: argparse.Namespace
) -> Cell:
    """Makes the cell at a length: of the kernel on one GPU (`BASELINE`), or of a strategy."""
    pattern = Registry("mask").load(mask)
    num_q_heads, num_kv_heads = options.heads
    params = pattern.resolve(
        {"num_global": 32, "window": 64} if mask == "global_sliding_window" and seqlen < 4096 else {}
    )
    how = {"kind": "kernel"} if strategy == BASELINE else {"kind": "cp", "strategy": strategy, "world": world}
    return Cell(
        **how,
        kernel=kernel,
        mask=mask,
        mask_params=params,
        corpus="prolong64k" if pattern.uses_documents else None,
        seqlen=seqlen,
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        head_dim=options.head_dim,
        dtype="bf16",
        direction="bwd",
        seed=0,
    )


def same_area(cell: Cell, world: int) -> int:
    """Returns the length at which the cell's pattern has a rank's share of its area, in steps of 1/64."""
    wanted = cell_mask(cell).area / world
    low = 1
    high = 64
    while low < high:
        middle = (low + high) // 2
        seqlen = max(cell.seqlen * middle // 64, 1)
        area = build_mask(cell.mask, **{**cell.mask_key, "seqlen": seqlen}).area
        low, high = (middle + 1, high) if area < wanted else (low, middle)
    return max(cell.seqlen * low // 64, 1)


def try_all(comm: Comm, options: argparse.Namespace) -> list[dict[str, Any]]:
    started = time.monotonic()
    lines = []
    for kernel in options.kernels or usable_kernels(comm):
        for mask in options.masks:
            baseline: dict[str, float] = {}
            for strategy in (BASELINE, *options.strategies):
                if comm.any(time.monotonic() - started > options.seconds):
                    return lines
                line = attempt(Line(comm, options, kernel, mask, strategy), baseline)
                if strategy == BASELINE and "reason" not in line:
                    baseline = {direction: line[f"{direction}_tflops"] for direction in DIRECTIONS}
                lines.append(line)
                if comm.rank == 0:
                    print(f"{time.monotonic() - started:5.0f} s", *told(line), flush=True)
                if comm.device.type == "cuda":
                    torch.cuda.empty_cache()
    return lines


def attempt(one: Line, baseline: dict[str, float]) -> dict[str, Any]:
    """Runs a line. A failure on all ranks makes a line, too; a failure of one rank ends the job when the
    others have waited long enough."""
    try:
        line = one.run(baseline)
    except Exception as error:  # any kernel may raise anything
        line = {
            "mask": one.mask,
            "kernel": one.kernel,
            "strategy": one.strategy,
            "reason": f"{type(error).__name__}: {error}",
        }
    failed = [rank for rank, reason in enumerate(one.comm.gather(line.get("reason"))) if reason]
    if failed and "reason" not in line:
        line = {name: line[name] for name in ("mask", "kernel", "strategy")} | {
            "reason": f"failed on rank {failed[0]}"
        }
    return line


def usable_kernels(comm: Comm) -> list[str]:
    names = ("naive",) if comm.device.type == "cpu" else ("band", "fa3", "cudnn_graph", "cudnn_flex")
    return [
        name
        for name in names
        if not any(comm.gather(Registry("kernel").load(name).available(comm.device.type)))
    ]


def told(line: dict[str, Any]) -> tuple[str, ...]:
    names = (line["mask"], line["kernel"], line["strategy"])
    if "reason" in line:
        return (*names, "–", " ".join(line["reason"].split())[:200])
    return (
        *names,
        f"{both(line, 'tflops', '#.3g')} TFLOP/s",
        f"{both(line, 'of_alone', '.0%')} of the baseline",
        f"{both(line, 'moved_mb', '.1f')} MB moved",
        f"error {line['error']:.2f}",
        line["how"],
    )


def both(line: dict[str, Any], what: str, digits: str) -> str:
    return " / ".join(format(line[f"{direction}_{what}"], digits) for direction in DIRECTIONS)


def rows_of(lines: Sequence[dict[str, Any]], strategies: Sequence[str]) -> list[tuple[str, ...]]:
    """Makes a row for each mask and kernel: TFLOP/s of the single-GPU baseline, and the share that each
    strategy reaches."""
    records: dict[tuple[str, str], dict[str, str]] = {}
    for line in lines:
        cells = records.setdefault((line["mask"], line["kernel"]), {})
        what = ("tflops", "#.3g") if line["strategy"] == BASELINE else ("of_alone", ".0%")
        cells[line["strategy"]] = "–" if "reason" in line else both(line, *what)
    return [
        (*names, *(cells.get(strategy, "") for strategy in (BASELINE, *strategies)))
        for names, cells in records.items()
    ]


def report(comm: Comm, options: argparse.Namespace) -> None:
    comm.use(options.messages)
    lines = try_all(comm, options)
    if comm.rank == 0:
        caption = f"{comm.world} ranks × {format_length(options.tokens)} tokens; {machine(comm.device)}."
        caption += f" {comm.messages_note}." if comm.messages_note else ""
        caption += (
            " Forward / backward: TFLOP/s of the kernel on one GPU, and the share of them that each "
            "strategy reaches."
        )
        records = tuple(
            dict.fromkeys(("reason", *(key for line in lines for key in line)), "") | line for line in lines
        )
        columns = ("mask", "kernel", "baseline, TFLOP/s", *options.strategies)
        Table(
            "cp_try", caption, columns, tuple(rows_of(lines, options.strategies)), records, columns[:2]
        ).publish(options)


def add_chunks(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--chunks",
        type=weights,
        metavar="WEIGHTS",
        help=(
            "of heads, for strategies that divide them, as 1 (one chunk), 1:1 or 1:2:1; else what promises "
            "to be quickest"
        ),
    )


def weights(text: str) -> tuple[int, ...]:
    """Reads the weights of chunks of heads from "1:2:1".

    Raises:
        ValueError: a weight is no positive number.
    """
    numbers = tuple(map(int, text.split(":")))
    if min(numbers) < 1:
        raise ValueError(f"'{text}': a chunk has a weight of 1 or more")
    return numbers


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cp.compare", description=str(__doc__).partition("\n")[0]
    )
    add_rank_options(parser)
    parser.add_argument("--tokens", type=parse_length, default=8192, help="of each rank (8K)")
    parser.add_argument("--heads", type=parse_heads, default=(64, 8))
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--kernels", type=lambda text: text.split(","), help="instead of those that are here")
    parser.add_argument("--masks", type=lambda text: text.split(","), default=MASKS)
    parser.add_argument(
        "--strategies", type=lambda text: text.split(","), default=Registry("strategy").names()
    )
    add_chunks(parser)
    parser.add_argument(
        "--messages",
        choices=("nccl", "symmetric"),
        default="nccl",
        help="symmetric: copy engines write straight into the memory of another GPU of the machine",
    )
    parser.add_argument("--seconds", type=float, default=80.0, help="no further line is begun after so long")
    parser.add_argument("--trace", type=Path, metavar="FOLDER", help="for timelines in Chrome's format")
    add_options(parser)
    run_on_ranks(report, parser.parse_args(arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
