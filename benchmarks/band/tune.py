"""Sweeps tile sizes of band attention's portable kernels: each is checked against float64, then timed over
masks that differ in kind.

    python -m benchmarks.band.tune forward|keys|queries [--head-dim 128] [--seqlen 16K] [--heads 64:8] [--out
    FILE]

All configurations are compiled first, in as many processes as there are cores. TFLOP/s of each mask (of the
exact area) are printed as they come and, sorted by their geometric mean, once more at the end. A failed or
wrong configuration says why.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from functools import cached_property
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import torch

from benchmarks.band.reference import reference
from longca.core.units import parse_length
from longca.masks import Mask, build_mask
from longca.ops.band.api import band_backward, band_forward
from longca.ops.band.config import PORTABLE_TILES, BandKernel, TileConfig
from longca.ops.band.launches import Launches
from longca.ops.band.plan import BandPlan, plan_band_attention
from longca.ops.band.triton.backward import backward_dkdv, backward_dq
from longca.ops.band.triton.preprocess import preprocess

MASKS = {
    "full": {},
    "causal": {},
    "causal_document": {},
    "causal_sliding_window": {},
    "shared_question": {},
    "block_sparse_uniform": {"block": 64, "density": 0.3},
}
MATMULS = {BandKernel.FORWARD: 2, BandKernel.DKDV: 4, BandKernel.DQ: 3}
SIZES = {  # rows, step, warps
    BandKernel.FORWARD: ((64, 64, 4), (64, 128, 4), (128, 64, 4), (128, 64, 8), (128, 128, 8), (256, 64, 8)),
    BandKernel.DKDV: ((64, 32, 4), (64, 64, 4), (64, 128, 8), (128, 32, 8), (128, 64, 8)),
    BandKernel.DQ: ((64, 32, 4), (64, 64, 4), (64, 128, 4), (128, 32, 4), (128, 64, 8), (128, 128, 8)),
}
LOOPS = {BandKernel.FORWARD: (1, 2), BandKernel.DKDV: (2,), BandKernel.DQ: (2,)}
SHARED_BYTES = 227 << 10
TOLERANCE = 1.2e-2


def candidates(use: BandKernel, head_dim: int) -> list[TileConfig]:
    """Returns configurations that can fit in shared memory and registers, then today's best with other
    numbers of packed heads."""
    kept = 1 if use is BandKernel.FORWARD else 2
    found = []
    for tuned in (
        TileConfig(*size, stages, loop) for size, stages, loop in product(SIZES[use], (2, 3), LOOPS[use])
    ):
        shared = 2 * head_dim * (kept * tuned.block_m + 2 * tuned.num_stages * tuned.block_n)
        values = head_dim * (2 if use is BandKernel.DKDV else 1) + tuned.block_n * (
            1 if use is BandKernel.FORWARD else 2
        )
        if shared <= SHARED_BYTES and tuned.block_m * values / (32 * tuned.num_warps) <= 224:
            found.append(tuned)
    return found + [replace(PORTABLE_TILES[head_dim][use], max_pack=pack) for pack in (1, 2, 4)]


class Sweep:
    """One mask with its inputs, and the calls to tune."""

    def __init__(self, mask: Mask, heads: tuple[int, int], head_dim: int, use: BandKernel) -> None:
        self.mask, self.heads, self.head_dim, self.use = mask, heads, head_dim, use
        generator = torch.Generator("cuda").manual_seed(1)
        shapes = (
            (mask.seqlen_q, heads[0]),
            (mask.seqlen_k, heads[1]),
            (mask.seqlen_k, heads[1]),
            (mask.seqlen_q, heads[0]),
        )
        self.inputs = [
            torch.randn(*shape, head_dim, generator=generator, device="cuda", dtype=torch.bfloat16)
            for shape in shapes
        ]

    def call(self, tuned: TileConfig) -> Callable[[], object]:
        """Returns a call of the one kernel that is tuned."""
        plan, scale, (q, k, v, dout) = self._plan(tuned), self.head_dim**-0.5, self.inputs
        lines, chosen = plan.kernels[self.use]
        if self.use is BandKernel.FORWARD:
            return lambda: band_forward(q, k, v, plan)
        (out, lse), launches = self.forward, Launches(q.device)
        if self.use is BandKernel.DKDV:
            stats = preprocess(launches, out, dout, lse, None, tuned.block_n // lines.tile_n)
            dk, dv = torch.empty_like(k), torch.empty_like(v)
            return lambda: backward_dkdv(launches, q, k, v, dout, stats, lines, scale, chosen, dk=dk, dv=dv)
        dq = torch.empty_like(q)
        stats = preprocess(launches, out, dout, lse, None, chosen.block_m // lines.tile_m)
        packs_per_section = (
            chosen.kv_heads_per_section * self.heads[0] // self.heads[1] * lines.tile_m // chosen.block_m
        )
        return lambda: backward_dq(
            launches, q, k, v, dout, stats, lines, scale, chosen, dq=dq, packs_per_section=packs_per_section
        )

    def results(self, tuned: TileConfig) -> list[torch.Tensor]:
        """Returns (out,), or (out, dq, dk, dv) for a backward kernel."""
        plan, (q, k, v, dout) = self._plan(tuned), self.inputs
        out, lse = band_forward(q, k, v, plan)
        return (
            [out] if self.use is BandKernel.FORWARD else [out, *band_backward(q, k, v, out, lse, dout, plan)]
        )

    @cached_property
    def forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        return band_forward(*self.inputs[:3], self._plan(PORTABLE_TILES[self.head_dim][self.use]))

    def _plan(self, tuned: TileConfig) -> BandPlan:
        return plan_band_attention(
            self.mask,
            num_q_heads=self.heads[0],
            num_kv_heads=self.heads[1],
            head_dim=self.head_dim,
            device=torch.device("cuda"),
            needs_backward=self.use is not BandKernel.FORWARD,
            tiles={**PORTABLE_TILES[self.head_dim], self.use: tuned},
        )

    @property
    def flops(self) -> float:
        return MATMULS[self.use] * 2 * self.mask.area * self.heads[0] / self.mask.num_groups * self.head_dim


def small(use: BandKernel, head_dim: int) -> Sweep:
    return Sweep(build_mask("shared_question", seqlen=777, corpus="pile", seed=1), (16, 2), head_dim, use)


def compile_one(use: BandKernel, head_dim: int, tuned: TileConfig) -> str | None:
    """Compiles a configuration into Triton's cache on disk; returns what went wrong, or None."""
    try:
        small(use, head_dim).results(tuned)
        torch.cuda.synchronize()
    except Exception as error:
        return (
            f"{type(error).__name__}: {str(error).strip().splitlines()[0][:90] if str(error).strip() else ''}"
        )
    return None


def largest_error(results: list[torch.Tensor], right: list[torch.Tensor]) -> float:
    """Returns the largest relative error of the tensors of `results`; `right` may have more."""
    pairs = zip(results, right, strict=False)
    return max(
        float(torch.linalg.vector_norm(ours.double() - exact) / torch.linalg.vector_norm(exact))
        for ours, exact in pairs
    )


def time_ms(call: Callable[[], object]) -> float:
    """Returns the median of 5 to 15 calls."""
    call()
    times: list[float] = []
    while len(times) < 5 or (len(times) < 15 and sum(times) < 30):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("use", choices=[use.value for use in BandKernel])
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--seqlen", default="16K")
    parser.add_argument("--heads", default="64:8")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    use, heads = BandKernel(options.use), tuple(int(number) for number in options.heads.split(":"))
    tried = candidates(use, options.head_dim)
    checked = small(use, options.head_dim)
    out, _, *grads = reference(*checked.inputs, checked.mask)
    start = time.monotonic()
    with ProcessPoolExecutor(min(len(tried), os.cpu_count() or 1), mp_context=get_context("spawn")) as pool:
        failures = list(pool.map(compile_one, [use] * len(tried), [options.head_dim] * len(tried), tried))
    print(f"{len(tried)} configurations compiled in {time.monotonic() - start:.0f} s", flush=True)
    trials = {
        name: Sweep(
            build_mask(
                name,
                seqlen=parse_length(options.seqlen),
                corpus="prolong64k",
                num_kv_heads=heads[1],
                **params,
            ),
            heads,
            options.head_dim,
            use,
        )
        for name, params in MASKS.items()
    }
    rows = []
    print("  ".join((*asdict(tried[0]), "error", *trials, "mean")))
    for tuned, failure in zip(tried, failures, strict=True):
        row = {**asdict(tuned), "error": failure}
        if failure is None:
            error = largest_error(checked.results(tuned), [out, *grads])
            row["error"] = None if error < TOLERANCE else f"off by {error:.1e}"
        if row["error"] is None:
            for name, trial in trials.items():
                row[name] = round(trial.flops / time_ms(trial.call(tuned)) / 1e9, 1)
            row["mean"] = round(statistics.geometric_mean(row[name] for name in trials), 1)
        rows.append(row)
        print(line(row), flush=True)
        if options.out:
            options.out.write_text(json.dumps(rows, indent=1))
    print("sorted:", *map(line, sorted(rows, key=lambda row: row.get("mean", 0))), sep="\n")


def line(row: dict[str, object]) -> str:
    return "  ".join("-" if value is None else str(value) for value in row.values())


if __name__ == "__main__":
    main()
