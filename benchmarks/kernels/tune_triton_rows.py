"""Tries tiles, warps, stages and ways of loading for the project's Triton kernels and shows the fastest of
each on this GPU.

    python benchmarks/kernels/tune_triton_rows.py [--out FILE.json] [--only flashmask,fa2_sparse]

8K tokens, 64:8 heads, bf16: FlashMask under full and causal, FA2-Sparse at density 0.5 with blocks of 128 and
64. Everything is compiled first, by as many processes as there are processors, and each result is compared
with torch's attention. The best five of a kernel are timed again, alternating. The winner goes into
`longca/ops/tuning.py`. Rates count the matmuls that a kernel really does
(forward 2, keys 4, queries 3), the summary counts FLOPs as everywhere (backward = 2.5 × forward).

Expected from compiled code, before the first run, at head dim 128:
- forward: 128 × 64, 4 warps, 2 stages, by TMA. It is the largest tile of which two programs fit into one
  multiprocessor (96 KB, 255 registers), so that one's softmax runs beside the other's matmuls. Next 128 × 128
  with 8 warps: wider matmuls, but a program alone.
- keys: 64 × 128, 8 warps, 2 stages (no spills inside the loop), or 64 × 64, 4 warps, two to a multiprocessor,
  which reads queries twice as often. Tiles of 128 queries spill.
- queries: 128 × 64, 8 warps, 2 or 3 stages: exponentials run beside dout · vᵀ; 64 × 64, 4 warps, two to a
  multiprocessor, is close.
- TMA against pointers: 10 to 35 registers fewer, 5 % or more where these are scarce. At head dim 64
  exponentials weigh twice as much, so that two small programs beat a large one in all three, and a third
  stage fits.
"""

import argparse
import functools
import gc
import itertools
import json
import math
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from longca.kernels.block_tables import block_tables
from longca.lowering.flashmask import flashmask_columns
from longca.masks import build_mask
from longca.ops import fa2_sparse
from longca.ops.flashmask import backward as flashmask_backward
from longca.ops.flashmask import forward as flashmask
from longca.ops.tuning import Tiling, Tuning, flashmask_tuning, sparse_tuning

SEQLEN, NUM_Q_HEADS, NUM_KV_HEADS = 8192, 64, 8
DEVICE, DTYPE = "cuda", torch.bfloat16
MATMULS = {"forward": 2, "keys": 4, "queries": 3}
RIGHT = 1e-2  # relative error up to which bf16 results agree
Grid = dict[tuple[int, int], list[tuple[int, int]]]  # tile → (warps, stages)
WIDE: dict[str, Grid] = {
    "forward": {
        (128, 64): [(4, 2), (4, 3), (8, 2), (8, 3), (8, 4)],
        (128, 128): [(8, 2), (8, 3)],
        (64, 64): [(4, 2), (4, 3)],
        (64, 128): [(4, 2)],
        (256, 64): [(8, 2), (8, 3)],
    },
    "keys": {
        (64, 128): [(8, 2), (8, 3), (8, 4)],
        (64, 64): [(4, 2), (4, 3)],
        (32, 128): [(8, 3), (8, 4)],
        (128, 64): [(8, 2)],
        (128, 128): [(8, 2)],
        (32, 64): [(4, 3)],
    },
    "queries": {
        (128, 64): [(8, 2), (8, 3), (8, 4)],
        (64, 64): [(4, 2), (4, 3)],
        (128, 128): [(8, 2)],
        (64, 128): [(4, 2), (8, 2)],
        (128, 32): [(4, 2), (8, 4)],
    },
}
NARROW: dict[str, Grid] = {  # head dim 64
    "forward": {
        (128, 64): [(4, 2), (4, 3), (4, 4), (8, 3)],
        (128, 128): [(4, 2), (8, 2), (8, 3)],
        (64, 128): [(4, 3)],
    },
    "keys": {
        (64, 128): [(8, 2), (8, 3)],
        (128, 128): [(8, 2), (8, 3)],
        (64, 64): [(4, 2), (4, 3)],
        (128, 64): [(4, 2), (8, 2)],
    },
    "queries": {
        (128, 64): [(4, 2), (8, 2), (8, 3)],
        (128, 128): [(8, 2), (8, 3)],
        (64, 128): [(4, 2)],
        (64, 64): [(4, 3)],
    },
}
BY_POINTERS = {
    (128, 64, 8, 3),
    (128, 128, 8, 2),
    (128, 64, 4, 2),
    (64, 128, 8, 2),
    (64, 128, 8, 3),
    (64, 64, 4, 2),
}


@dataclass(frozen=True)
class Case:
    row: str
    mask: str
    head_dim: int
    block: int = 0

    def __str__(self) -> str:
        return f"{self.row} D{self.head_dim} {self.mask}{f' {self.block}' if self.block else ''}"


@dataclass(frozen=True)
class Candidate:
    case: Case
    kernel: str
    tiling: Tiling


CASES = (
    *(Case("flashmask", mask, head_dim) for head_dim in (128, 64) for mask in ("full", "causal")),
    *(Case("fa2_sparse", "block_sparse_uniform", 128, block) for block in (128, 64)),
)


def trials(cases: list[Case]) -> list[Candidate]:
    found = []
    for case in cases:
        for kernel, grid in (WIDE if case.head_dim == 128 else NARROW).items():
            for tile, options in grid.items():
                for option in options:
                    ways = (True, False) if (*tile, *option) in BY_POINTERS else (True,)
                    found += [
                        Candidate(case, kernel, Tiling(*tile, *option, way))
                        for way in ways
                        if not case.block or max(tile) <= case.block
                    ]
    return found


class Bench:
    """A case's inputs on the GPU, and its kernels as functions of their tiling."""

    def __init__(self, case: Case) -> None:
        params = {"block": case.block, "density": 0.5} if case.block else {}
        self.mask = build_mask(case.mask, seqlen=SEQLEN, seed=0, num_kv_heads=NUM_KV_HEADS, **params)
        generator = torch.Generator(DEVICE).manual_seed(1)
        self.q, self.k, self.v, self.dout = (
            torch.randn(heads, SEQLEN, case.head_dim, generator=generator, device=DEVICE, dtype=DTYPE)
            for heads in (NUM_Q_HEADS, NUM_KV_HEADS, NUM_KV_HEADS, NUM_Q_HEADS)
        )
        self.scale = case.head_dim**-0.5
        self.flops_per_matmul = 2.0 * self.mask.area / self.mask.num_groups * NUM_Q_HEADS * case.head_dim
        (self._sparse if case.block else self._flashmask)(case)

    def _flashmask(self, case: Case) -> None:
        form = flashmask_columns(self.mask)
        columns, inputs = torch.from_numpy(form.columns).to(DEVICE), (self.q, self.k, self.v)

        @functools.cache
        def mask_of(tiling: Tiling) -> flashmask.FlashMaskTensors:
            return flashmask.make_mask(
                columns, form.causal, SEQLEN, Tuning(tiling, tiling, tiling), needs_backward=True
            )

        out, lse = flashmask.forward(*inputs, mask_of(flashmask_tuning(case.head_dim).forward), self.scale)
        given = (*inputs, self.dout, (out.float() * self.dout).sum(-1), lse / math.log(2))
        self.calls: dict[str, Callable[[Tiling], Callable[[], object]]] = {
            "forward": lambda tiling: functools.partial(
                flashmask.forward, *inputs, mask_of(tiling), self.scale
            ),
            "keys": lambda tiling: functools.partial(
                flashmask_backward.backward_of_keys, *given, mask_of(tiling), self.scale
            ),
            "queries": lambda tiling: functools.partial(
                flashmask_backward.backward_of_queries, *given, mask_of(tiling), self.scale
            ),
        }
        self.heads_first = True

    def _sparse(self, case: Case) -> None:
        tables, blocks = block_tables(self.mask, torch.device(DEVICE)), (case.block, case.block)
        of_queries, of_keys = (tables.q_to_k, tables.q_to_k_counts), (tables.k_to_q, tables.k_to_q_counts)
        q, k, v, dout = (x.transpose(0, 1).contiguous() for x in (self.q, self.k, self.v, self.dout))
        out, lse = fa2_sparse.sparse_forward(
            q, k, v, *of_queries, blocks, self.scale, sparse_tuning(case.head_dim, blocks).forward
        )
        given = q, k, v, dout, lse / math.log(2), (out.float() * dout).sum(-1).T.contiguous()
        self.calls = {
            "forward": lambda tiling: functools.partial(
                fa2_sparse.sparse_forward, q, k, v, *of_queries, blocks, self.scale, tiling
            ),
            "keys": lambda tiling: functools.partial(
                fa2_sparse.backward_of_keys, *given, of_keys, blocks, self.scale, tiling
            ),
            "queries": lambda tiling: functools.partial(
                fa2_sparse.backward_of_queries, *given, of_queries, blocks, self.scale, tiling
            ),
        }
        self.heads_first = False

    @functools.cached_property
    def right(self) -> dict[str, list[torch.Tensor]]:
        """Results of each kernel by torch's attention, one KV head at a time."""
        outs, grads, share = [], [], NUM_Q_HEADS // NUM_KV_HEADS
        for head in range(NUM_KV_HEADS):
            own = slice(head * share, (head + 1) * share)
            q, k, v = (x.detach().clone().requires_grad_() for x in (self.q[own], self.k[head], self.v[head]))
            options = (
                {"is_causal": self.mask.name == "causal"}
                if self.mask.grid is None
                else {"attn_mask": self._visible(head)}
            )
            out = torch.nn.functional.scaled_dot_product_attention(
                q[None], *(x.expand(1, share, -1, -1) for x in (k, v)), scale=self.scale, **options
            )[0]
            grads.append(torch.autograd.grad(out, (q, k, v), self.dout[own]))
            outs.append(out.detach())
        dq, dk, dv = zip(*grads, strict=True)
        return {
            "forward": [torch.cat(outs)],
            "keys": [torch.stack(dk), torch.stack(dv)],
            "queries": [torch.cat(dq)],
        }

    def _visible(self, head: int) -> torch.Tensor:
        assert self.mask.grid is not None
        blocks = torch.from_numpy(self.mask.grid.visible[head * self.mask.num_groups // NUM_KV_HEADS]).to(
            DEVICE
        )
        return blocks.repeat_interleave(SEQLEN // blocks.shape[0], 0).repeat_interleave(
            SEQLEN // blocks.shape[1], 1
        )

    def error(self, kernel: str, results: Any) -> float:
        found = (
            [results] if kernel == "queries" else list(results)[: len(self.right[kernel])]
        )  # without the LSE
        pairs = zip(
            found if self.heads_first else [x.transpose(0, 1) for x in found], self.right[kernel], strict=True
        )
        return max(float((x.float() - y.float()).norm() / y.float().norm()) for x, y in pairs)


@functools.lru_cache(maxsize=1)  # trials come case by case
def bench_of(case: Case) -> Bench:
    gc.collect()  # a bench's functions hold it
    return Bench(case)


def compiles(trial: Candidate) -> str | None:
    """Runs it once, which leaves the compiled kernel in Triton's cache; why not, if it cannot be."""
    try:
        bench_of(trial.case).calls[trial.kernel](trial.tiling)()
        torch.cuda.synchronize()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:80] if str(error) else ''}"
    return None


def time_ms(call: Callable[[], object], num_calls: int) -> float:
    call()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(num_calls + 1)]
    for mark in marks:
        mark.record()
        if mark is not marks[-1]:
            call()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in itertools.pairwise(marks))


def compile_all(found: list[Candidate], console: Console) -> list[Candidate]:
    """Those that can run. Processes take whole cases' worth of neighbours, so that each sets up few."""
    start, failed = time.perf_counter(), {}
    with ProcessPoolExecutor(min(os.cpu_count() or 1, 16), multiprocessing.get_context("spawn")) as pool:
        waiting: dict[Candidate, Future[str | None]] = {
            trial: pool.submit(compiles, trial) for trial in found
        }
        for trial, future in waiting.items():
            try:
                failed[trial] = future.result()
            except Exception as error:  # its process died
                failed[trial] = repr(error)
    for trial, reason in failed.items():
        if reason:
            console.print(
                f"left out: {trial.case} {trial.kernel} {short(trial.tiling)}: {reason}", markup=False
            )
    console.print(f"compiled in {time.perf_counter() - start:.0f} s", highlight=False)
    return [trial for trial in found if not failed[trial]]


def measure(found: list[Candidate], console: Console) -> list[dict[str, Any]]:
    """Times all candidates once, then the best five of each kernel of each case alternating."""
    rows: list[dict[str, Any]] = []
    for case in dict.fromkeys(trial.case for trial in found):
        bench = bench_of(case)
        for kernel in MATMULS:
            times: dict[Tiling, float] = {}
            for tiling in (trial.tiling for trial in found if (trial.case, trial.kernel) == (case, kernel)):
                call = bench.calls[kernel](tiling)
                error = bench.error(kernel, call())
                if error > RIGHT:
                    console.print(f"WRONG by {error:.1e}: {case} {kernel} {short(tiling)}", markup=False)
                else:
                    times[tiling] = time_ms(call, 5)
            best = sorted(times, key=lambda tiling: times[tiling])[:5]
            turns = [[time_ms(bench.calls[kernel](tiling), 5) for tiling in best] for _ in range(3)]
            times |= {
                tiling: statistics.median(turn[place] for turn in turns) for place, tiling in enumerate(best)
            }
            for tiling in sorted(times, key=lambda tiling: times[tiling]):
                rate = MATMULS[kernel] * bench.flops_per_matmul / times[tiling] / 1e9
                rows.append(
                    {
                        **asdict(case),
                        "kernel": kernel,
                        **asdict(tiling),
                        "time_ms": times[tiling],
                        "tflops": rate,
                    }
                )
    return rows


def report(rows: list[dict[str, Any]], console: Console) -> None:
    table = Table(
        "case",
        "kernel",
        *(f"{place}." for place in range(1, 6)),
        title="TFLOP/s of the matmuls done: the best five",
    )
    summary = Table(
        "case",
        "forward",
        "backward",
        title="TFLOP/s as the study counts them, each kernel at its best (no preparing pass)",
    )
    for case in dict.fromkeys(case_of(row) for row in rows):
        own = {
            kernel: [row for row in rows if case_of(row) == case and row["kernel"] == kernel]
            for kernel in MATMULS
        }
        for kernel, ranked in own.items():
            table.add_row(
                str(case), kernel, *(f"{row['tflops']:.0f}  {short(tiling_of(row))}" for row in ranked[:5])
            )
        if all(own.values()):
            keys, queries = own["keys"][0], own["queries"][0]
            work = keys["tflops"] * keys["time_ms"] / MATMULS["keys"]  # of one matmul
            summary.add_row(
                str(case),
                f"{own['forward'][0]['tflops']:.0f}",
                f"{5 * work / (keys['time_ms'] + queries['time_ms']):.0f}",
            )
    console.print(table, summary)


def case_of(row: dict[str, Any]) -> Case:
    return Case(row["row"], row["mask"], row["head_dim"], row["block"])


def tiling_of(row: dict[str, Any]) -> Tiling:
    return Tiling(row["tile_q"], row["tile_k"], row["num_warps"], row["num_stages"], row["by_tma"])


def short(tiling: Tiling) -> str:
    return (
        f"{tiling.tile_q}×{tiling.tile_k} w{tiling.num_warps} "
        f"s{tiling.num_stages}{'' if tiling.by_tma else ' pointers'}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="all times, as JSON")
    parser.add_argument("--only", default="flashmask,fa2_sparse", help="rows, separated by commas")
    arguments = parser.parse_args()
    console = Console(width=200)
    found = trials([case for case in CASES if case.row in arguments.only.split(",")])
    rows = measure(compile_all(found, console), console)
    if arguments.out:
        arguments.out.write_text(json.dumps({"gpu": torch.cuda.get_device_name(), "rows": rows}, indent=1))
    report(rows, console)


if __name__ == "__main__":
    main()
