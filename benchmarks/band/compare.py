"""Compares band attention with other kernels: same tensors, one process, alternating calls; static masks and
blocks of 64.

    python -m benchmarks.band.compare [--only static,blocks] [--lengths 32K,8K] [--kernels band,flex] [--keep]
                                      [--write docs/results/h200/band.md]                                     measures
    python -m benchmarks.band.compare --read reports/h200 [--write docs/results/h200/band.md]   makes the tables of an earlier run

bf16, head dim 128; FLOPs of the mask's exact area, five matmuls backward. Band attention is checked against
float64 first, the other kernels against band attention. A kernel that cannot run says why. Several processes
fill the compilers' disk caches first (--warm-seconds).
No case starts after --max-seconds: a second call with --keep measures the cases left out and keeps those in
the CSV.
"""  # noqa: E501

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path

import torch

from benchmarks.band.tables import (
    ANY_ORDER,
    MOST_ROUNDS,
    OURS,
    WITH_RESTS,
    Record,
    beside_best,
    by_mask,
    read,
    targets,
    wide,
)
from benchmarks.common.rounds import in_rounds, iqr, sampler
from benchmarks.common.text import machine, names
from longca.core import Direction, Registry, Scalar, format_length, parse_heads, parse_length
from longca.kernels import Prepared, Problem
from longca.lab.bench.check.inputs import DTYPES, Inputs, input_seed, make_inputs
from longca.lab.bench.check.oracle import Oracle, wrong
from longca.lab.bench.check.scope import affordable
from longca.lab.studies import Cell, cell_mask
from longca.masks import Mask
from tools.table import add_options

STATIC_RIVALS = (ANY_ORDER, "flex", "flex_flash", "cudnn_flex")
BLOCK_RIVALS = ("vsa", "flashinfer", "fa2_sparse", "flex")
DENSITIES = (0.1, 0.3, 0.5, 0.8)
BLOCK = 64
SECONDS_PER_CALL = 0.35  # in all rounds
AGREEMENT = 0.02  # of two results in bf16: some times what each of them is off by
KINDS = ("static", "blocks")


@dataclass(frozen=True)
class Case:
    """One mask in one direction, and the kernels that run it."""

    mask: str
    seqlen: int
    heads: tuple[int, int]
    direction: Direction
    kernels: tuple[str, ...]
    params: dict[str, Scalar] = field(default_factory=dict)
    dtype: str = "bf16"
    head_dim: int = 128

    def cell(self, kernel: str) -> Cell:
        pattern = Registry("mask").load(self.mask)
        corpus = ("pile" if self.seqlen <= 12288 else "prolong64k") if pattern.uses_documents else None
        return Cell(
            kind="kernel",
            kernel=kernel,
            mask=self.mask,
            mask_params=pattern.resolve(self.params),
            corpus=corpus,
            seqlen=self.seqlen,
            num_q_heads=self.heads[0],
            num_kv_heads=self.heads[1],
            head_dim=self.head_dim,
            dtype=self.dtype,
            direction=self.direction,
        )

    def problem(self, mask: Mask, device: torch.device) -> Problem:
        return Problem(mask, *self.heads, self.head_dim, DTYPES[self.dtype], device, self.direction == "bwd")

    @property
    def title(self) -> str:
        density = f" {self.params['density']}" if "density" in self.params else ""
        return (
            f"{format_length(self.seqlen)} {self.mask}{density} {self.heads[0]}:{self.heads[1]} "
            f"{self.direction}"
        )

    def record(self, kernel: str, **values: object) -> Record:
        return Record(
            self.seqlen,
            self.mask,
            float(self.params.get("density", 0)),
            f"{self.heads[0]}:{self.heads[1]}",
            self.direction,
            kernel,
            **values,
        )


def cases(options: argparse.Namespace) -> Iterator[Case]:
    """Yields all cases, the most important first."""
    patterns = Registry("mask").load_all()
    static = sorted(pattern.name for pattern in patterns if pattern.number and pattern.family != "dynamic")

    def run_by(rivals: Sequence[str]) -> tuple[str, ...]:
        return tuple(
            name
            for name in options.kernels
            if name in (OURS, *rivals) or name not in (*STATIC_RIVALS, *BLOCK_RIVALS)
        )

    for index, seqlen in enumerate(options.lengths):
        for mask in static if "static" in options.only else ():
            for direction in ("fwd", "bwd"):
                yield Case(mask, seqlen, options.heads, direction, run_by(STATIC_RIVALS))
        for density in DENSITIES if "blocks" in options.only and index == 0 else ():
            params = {"block": BLOCK, "density": density}
            for heads in (options.heads, (options.heads[0], options.heads[0])):
                for direction in ("fwd", "bwd"):
                    yield Case("block_sparse_uniform", seqlen, heads, direction, run_by(BLOCK_RIVALS), params)


def ready(kernel: str, case: Case, mask: Mask, device: torch.device) -> Prepared:
    """Prepares a kernel for a case.

    Raises:
        ValueError: the kernel refuses the case.
    """
    plugin = Registry("kernel").load(kernel)
    reason = plugin.available(device.type) or plugin.supports(
        case.cell(kernel).call_spec, mask.traits, device.type
    )
    if reason is not None:
        raise ValueError(reason)
    return plugin.prepare(case.problem(mask, device))


def fill_caches(todo: Sequence[Case], seconds: float, device: torch.device) -> None:
    """Fills the compilers' caches on disk: many processes prepare every kernel of every case once."""
    if device.type != "cuda" or seconds <= 0:
        return
    start = time.monotonic()
    jobs = sorted(
        ((kernel, case) for case in todo for kernel in case.kernels), key=lambda job: job[0] != "flex_flash"
    )
    with ProcessPoolExecutor(max((os.cpu_count() or 2) - 2, 1), mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(fill_cache, *job) for job in jobs]
        done, late = wait(futures, timeout=seconds)
        pool.shutdown(cancel_futures=True)
    print(
        f"{time.monotonic() - start:5.0f} s  {len(done)} of {len(done) + len(late)} kernels compiled "
        f"beforehand",
        flush=True,
    )


def fill_cache(kernel: str, case: Case) -> None:
    try:
        ready(kernel, case, cell_mask(case.cell(kernel)), torch.device("cuda", 0))
    except Exception:  # `measured` will report the reason
        return
    finally:
        gc.collect()
        torch.cuda.empty_cache()


def measured(
    case: Case,
    device: torch.device,
    prepare: Callable[[str, Case, Mask, torch.device], Prepared] = ready,
    exact: Collection[str] = (),
) -> list[Record]:
    """Measures all kernels of a case and returns a record for each. An exception becomes the record's
    reason.

    Args:
        prepare: prepares a kernel by its name.
        exact: kernels that are compared with float64, as the first one is.
    """
    mask = cell_mask(case.cell(OURS))
    cell = case.cell(OURS)
    inputs = make_inputs(cell, device)
    reasons: dict[str, str] = {}
    calls: dict[str, Callable[[], object]] = {}
    samplers: dict[str, Callable[[], float]] = {}
    judge = Judge(case, mask, inputs, device)

    def ask(kernel: str) -> None:
        prepared = prepare(kernel, case, mask, device)
        calls[kernel] = call = judge.call(prepared)
        judge.check(prepared, call(), kernel in exact)

    def warm_up(
        kernel: str,
    ) -> None:  # when all are there: preparing one can throw away what torch compiled for another
        samplers[kernel] = sampler(calls[kernel], device)

    for step in (ask, warm_up):
        for kernel in case.kernels:
            if kernel not in reasons:
                try:
                    step(kernel)
                except Exception as error:  # any kernel may raise anything
                    reasons[kernel] = (
                        f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"[:160]
                    )
    times = in_rounds(samplers, MOST_ROUNDS, SECONDS_PER_CALL * len(samplers)) if samplers else {}
    work = cell.flops(mask.area, mask.num_groups)
    records = []
    for kernel in case.kernels:
        if kernel in reasons:
            records.append(case.record(kernel, reason=reasons[kernel]))
        else:
            median = statistics.median(times[kernel])
            records.append(
                case.record(
                    kernel, time_ms=median, iqr=iqr(times[kernel]) / median, tflops=work / median / 1e9
                )
            )
    return records


class Judge:
    """Makes each kernel's call and checks its result."""

    def __init__(self, case: Case, mask: Mask, inputs: Inputs, device: torch.device) -> None:
        self.case = case
        self.inputs = inputs
        problem = case.problem(mask, device)
        self._oracle = Oracle(problem, inputs, scope=affordable(problem, input_seed(case.cell(OURS))))
        self._right: list[torch.Tensor] | None = None

    def call(self, prepared: Prepared) -> Callable[[], tuple[torch.Tensor, ...]]:
        inputs = self.inputs
        q, k, v, dout = (
            prepared.to_layout(x) for x in (inputs.q_THD, inputs.k_TGD, inputs.v_TGD, inputs.dout_THD)
        )
        if self.case.direction == "fwd":
            return lambda: (prepared.forward(q, k, v).out,)
        forward = prepared.forward(q, k, v)
        return lambda: prepared.backward(forward, dout)

    def check(self, prepared: Prepared, results: tuple[torch.Tensor, ...], exact: bool) -> None:
        """Checks the first kernel's result, and any that must be exact, against float64, and every other one
        against the first.

        Raises:
            ValueError: the result is wrong.
        """
        tensors = [prepared.from_layout(x) for x in results]
        if self._right is not None and not exact:
            for first, right in zip(tensors, self._right, strict=True):
                distance = torch.linalg.vector_norm(first.float() - right.float()) / torch.linalg.vector_norm(
                    right.float()
                )
                if not distance <= AGREEMENT:
                    raise ValueError(f"its result is {float(distance):.1e} from the first kernel's")
            return
        if self.case.direction == "fwd" and (reason := wrong(self._oracle.judge(tensors[0]))) is not None:
            raise ValueError(reason)
        if self.case.direction == "bwd":
            self._check_gradients(prepared)
        self._right = tensors

    def _check_gradients(self, prepared: Prepared) -> None:
        """Checks gradients of the oracle's output gradient, which is zero in rows that it does not check."""
        inputs = self.inputs
        forward = prepared.forward(
            *(prepared.to_layout(x) for x in (inputs.q_THD, inputs.k_TGD, inputs.v_TGD))
        )
        dq, dk, dv = (
            prepared.from_layout(x)
            for x in prepared.backward(forward, prepared.to_layout(self._oracle.dout_THD))
        )
        if (
            reason := wrong(self._oracle.judge(prepared.from_layout(forward.out), None, (dq, dk, dv)))
        ) is not None:
            raise ValueError(reason)


def ceiling(device: torch.device) -> str:
    """Measures what a matmul and a copy reach on this device."""
    if device.type != "cuda":
        return ""
    a = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    block = torch.ones(4 << 30, device=device, dtype=torch.uint8)
    target = torch.empty_like(block)
    times = in_rounds(
        {"matmul": sampler(lambda: a @ a, device), "copy": sampler(lambda: target.copy_(block), device)}, 15
    )
    matmul, copy = (statistics.median(times[name]) for name in ("matmul", "copy"))
    return (
        f" (an 8192³ matmul {2 * 8192**3 / matmul / 1e9:.0f} TFLOP/s, a device copy "
        f"{2 * len(block) / copy / 1e9:.2f} TB/s)"
    )


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    known = [name for name in Registry("kernel").names() if Registry("kernel").load(name).family != "control"]
    usual = [name for name in known if name in (OURS, *STATIC_RIVALS, *BLOCK_RIVALS)]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.band.compare", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument(
        "--only", type=lambda text: names(text, KINDS), default=list(KINDS), help="static, blocks"
    )
    parser.add_argument(
        "--kernels", type=lambda text: names(text, known), default=usual, help=",".join(usual)
    )
    parser.add_argument(
        "--lengths",
        type=lambda text: [parse_length(part) for part in text.split(",")],
        default=[32768, 8192],
        help="of the static masks (32K,8K); the blocks have the first",
    )
    parser.add_argument(
        "--heads", type=parse_heads, default=(64, 8), help="64:8; blocks are measured without GQA as well"
    )
    parser.add_argument(
        "--warm-seconds", type=float, default=200.0, help="for compiling beforehand (200); 0: no"
    )
    parser.add_argument(
        "--max-seconds", type=float, default=540.0, help="begin no case after this long (540)"
    )
    parser.add_argument("--keep", action="store_true", help="measure only what is not in the CSV of --out")
    parser.add_argument(
        "--read", type=Path, metavar="FOLDER", help="of the band.csv of an earlier run, instead of measuring"
    )
    add_options(parser)
    options = parser.parse_args(arguments)
    if options.read is not None and not read(options.read):
        parser.error(f"no band.csv in {options.read}: this program makes it")
    return options


def main(arguments: Sequence[str]) -> int:
    os.environ.setdefault(
        "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "1"
    )  # else each process compiles the CuTe kernels anew
    options = parse(arguments)
    if options.read is not None:
        publish(read(options.read), options)
        return 0
    options.kernels.sort(key=lambda name: name != OURS)
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    start = time.monotonic()
    records = read(options.out) if options.keep else []
    there = {record.case for record in records if record.kernel == OURS and record.tflops}
    todo = [case for case in cases(options) if case.record(OURS).case not in there]
    fill_caches(todo, options.warm_seconds, device)
    where = machine(device) + ceiling(device) + (WITH_RESTS if device.type == "cuda" else "")
    for case in todo:
        if time.monotonic() - start > options.max_seconds:
            print(f"not begun: {case.title} and what follows it; call again with --keep", flush=True)
            break
        new = [replace(record, where=where) for record in measured(case, device)]
        records = [record for record in records if record.case != new[0].case] + new
        print(
            f"{time.monotonic() - start:5.0f} s  {case.title}: ",
            ", ".join(record.text for record in new),
            flush=True,
        )
        wide(records).save(options.out)
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    publish(records, options)
    return 0


def publish(records: Sequence[Record], options: argparse.Namespace) -> None:
    for table in (wide, beside_best, by_mask, targets):
        table(records).publish(options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
