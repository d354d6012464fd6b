"""Checks and times the Hopper kernels of band attention.

    python -m benchmarks.band.sm90_try [OUT.json [VARIANT …]]

Each variant has its own processes. All variants are checked side by side, smallest case first; then each is
timed alone, in the order given. A case that takes too long is stopped and named, and the checks go on after
it. OUT has each result as soon as it is known.

Forward: the Hopper kernel; the portable kernel. Backward: all gradients in one pass (`sm90.bwd_fused`), in
any order or in one, from the last row or from the first; with " k2 r4 h2 s1" at its end, of 2 KV heads at
once, 4 items of each work tile at once, 2 query heads an item, and first addends stored. dK and dV by
`sm90.bwd_dkdv`, with " k2" of 2 KV heads at once, and dQ by the portable kernel ("bwd two") or by
`sm90.bwd_dq` ("bwd two dq"); both portable kernels.
TFLOP/s are of the mask's area: 4 · area · heads · head dim forward, 10 backward.
"""

import argparse
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.band.reference import inputs, reference
from longca.kernels.first_call import wait
from longca.lab.bench.measure.timer import time_calls
from longca.lab.studies.study import Measure
from longca.masks import build_mask
from longca.masks.band import make
from longca.masks.mask import Mask
from longca.ops.band.tables.backward_rule import AddOrder

FORWARD = "fwd", "fwd portable"
FUSED = {"bwd": AddOrder.ANY, "bwd from last": AddOrder.FROM_LAST, "bwd from first": AddOrder.FROM_FIRST}
OF_SECTIONS = (*FUSED, "bwd two", "bwd two dq")  # ways whose KV heads can be divided otherwise
BACKWARD = "bwd two dq", "bwd from last", "bwd from first", "bwd", "bwd two", "bwd portable"
DENSE = (
    "causal_document",
    "causal",
    "full",
    "global_sliding_window",
    "shared_question",
    "prefix_lm_document",
    "causal_blockwise",
    "sliding_window",
    "causal_sliding_window",
    "prefix_lm",
    "block_causal_document",
)
TIMES = [
    *((name, seqlen, 64, 8) for seqlen in (32768, 8192) for name in DENSE),
    *((f"block_sparse_uniform {block}", 32768, 64, 8) for block in (64, 128)),
    ("block_sparse_uniform 64", 32768, 64, 64),
]
MEASURE = Measure.fixed(warmup=2, repeats=7, max_seconds=2)
CASE_TIMEOUT_S, MOST_FAILURES = 30, 3  # the first case loads torch and compiles


class Results:
    """Collects the rows of each variant and writes them to a file as they come."""

    def __init__(self, out: Path, variants: Sequence[str]) -> None:
        out.parent.mkdir(parents=True, exist_ok=True)
        self._out, self._lock = out, threading.Lock()
        self.rows: dict[str, list[dict]] = {name: [] for name in variants}

    def add(self, variant: str, row: dict) -> None:
        with self._lock:
            self.rows[variant].append(row)
            self._out.write_text(json.dumps(self.rows, indent=1))

    def to_be_timed(self, variant: str) -> bool:
        """Tells whether no check ended its process: a crash costs the machine's time, wrong numbers do no
        harm."""
        return bool(self.rows[variant]) and all(
            max(row["errors"]) < float("inf") for row in self.rows[variant]
        )


def mask_of(name: str, seqlen: int, kv_heads: int) -> Mask:
    name, _, block = name.partition(" ")
    params = {"block": int(block), "density": 0.5} if block else {}
    return build_mask(name, seqlen=seqlen, corpus="prolong64k", num_kv_heads=kv_heads, **params)


def forward(variant: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Mask):
    """Returns a call that computes (out, LSE)."""
    from longca.ops.band.api import band_forward
    from longca.ops.band.config import PORTABLE_TILES, SM90_FORWARD, SM90_FORWARD_SHORT_BLOCKS, BandKernel
    from longca.ops.band.plan import mean_block, plan_band_attention

    tuned = dict(PORTABLE_TILES[q.shape[2]])
    if variant != "fwd portable":
        short = (mean_block(mask, keys=True) or 128) % 128 != 0
        tuned[BandKernel.FORWARD] = SM90_FORWARD_SHORT_BLOCKS if short else SM90_FORWARD
    plan = plan_band_attention(
        mask,
        num_q_heads=q.shape[1],
        num_kv_heads=k.shape[1],
        head_dim=q.shape[2],
        device=q.device,
        needs_backward=False,
        tiles=tuned,
    )
    return lambda: band_forward(q, k, v, plan)


def backward(variant: str, q, k, v, out, lse, dout, mask: Mask):
    """Returns a call that computes (dq, dk, dv)."""
    from longca.ops.band.api import band_backward
    from longca.ops.band.config import PORTABLE_TILES, SM90_DKDV, SM90_DQ, SM90_FUSED, BandKernel
    from longca.ops.band.plan import plan_band_attention

    tuned, (way, others) = dict(PORTABLE_TILES[128]), split_variant(variant)
    if way != "bwd portable":
        tuned[BandKernel.DKDV] = replace(SM90_DKDV, **others)
    if way == "bwd two dq":
        tuned[BandKernel.DQ] = SM90_DQ
    if way in FUSED:
        tuned[BandKernel.DKDV] = replace(SM90_FUSED, in_order=FUSED[way], **others)
        del tuned[BandKernel.DQ]
    plan = plan_band_attention(
        mask, num_q_heads=q.shape[1], num_kv_heads=k.shape[1], head_dim=128, device=q.device, tiles=tuned
    )
    return lambda: band_backward(q, k, v, out, lse, dout, plan)


def split_variant(variant: str) -> tuple[str, dict[str, Any]]:
    """(way, fields of its `TileConfig`) from "bwd from first k2 r4 s1"."""
    names = {
        "k": "kv_heads_per_section",
        "r": "rounds_per_section",
        "h": "heads_per_item",
        "s": "stores_first",
    }
    found = re.findall(r" ([krhs])(\d+)\b", variant)
    return re.sub(r" [krhs]\d+\b", "", variant), {names[letter]: int(number) for letter, number in found}


def check(variant: str, mask: Mask, heads: int, kv_heads: int, head_dim: int) -> dict:
    q, k, v, dout = inputs(mask.seqlen_q, mask.seqlen_k, heads, kv_heads, head_dim)
    want = reference(q, k, v, dout, mask)
    worst_lse = 0.0
    if variant in FORWARD:
        out, lse = forward(variant, q, k, v, mask)()
        got, want = [out], [want[0], want[1]]
        empty = want[1].isinf()
        worst_lse = float(
            torch.where(empty, torch.where(lse.isinf(), 0.0, 1.0), (lse.double() - want[1]).abs()).max()
        )
    else:
        call = backward(variant, q, k, v, want[0].bfloat16(), want[1].float(), dout, mask)
        got, want = call(), want[2:]
        if split_variant(variant)[0] != "bwd":
            for _ in range(3):
                assert all(torch.equal(a, b) for a, b in zip(call(), got, strict=True)), (
                    "gradients differ from run to run"
                )
    wait(q.device)
    errors = [
        float((a.double() - b).norm() / b.norm().clamp(min=1e-9))
        if bool(a.isfinite().all())
        else float("inf")
        for a, b in zip(got, want, strict=False)
    ]
    return {
        "kind": "check",
        "what": describe(mask, heads, kv_heads, head_dim),
        "errors": errors,
        "lse": worst_lse,
    }


def measure(variant: str, name: str, seqlen: int, heads: int, kv_heads: int) -> dict:
    mask = mask_of(name, seqlen, kv_heads)
    q, k, v, dout = inputs(seqlen, seqlen, heads, kv_heads)
    if variant in FORWARD:
        call, products = forward(variant, q, k, v, mask), 4
    else:
        out, lse = forward("fwd portable", q, k, v, mask)()
        call, products = backward(variant, q, k, v, out, lse, dout, mask), 10
    ms = float(np.median(time_calls(call, MEASURE, q.device).time_ms[0]))
    flops = products * mask.area * heads // mask.num_groups * 128
    return {
        "kind": "time",
        "what": title(name, seqlen, heads, kv_heads),
        "tflops": flops / ms / 1e9,
        "ms": ms,
    }


def title(name: str, seqlen: int, heads: int, kv_heads: int) -> str:
    return f"{name} {seqlen} {heads}:{kv_heads}"


def describe(mask: Mask, heads: int, kv_heads: int, head_dim: int) -> str:
    return f"{mask.name} {mask.seqlen_q} {heads}:{kv_heads} D{head_dim}"


def checks() -> list[tuple[Mask, int, int, int]]:
    """Lists what is checked: (mask, query heads, KV heads, head dim)."""
    ragged = Mask(
        300,
        777,
        (make([0, 100], [90, 300], [0, 5], [700, 777], [-20, -(1 << 40)], [300, 400]),),
        name="ragged with empty rows",
    )
    names = "full", "causal", "causal_document", "prefix_lm_document", "shared_question", "causal_blockwise"
    small = [
        ragged,
        *(build_mask(name, seqlen=1500) for name in names),
        build_mask("sliding_window", seqlen=1000, window=70),
        build_mask("global_sliding_window", seqlen=3000, num_global=100, window=200),
        build_mask("causal", seqlen=1),
    ]
    blocks = [
        (build_mask("block_sparse_uniform", seqlen=2048, num_kv_heads=g, block=b), h, g, 128)
        for b, h, g in ((64, 16, 2), (128, 16, 2), (64, 4, 4))
    ]
    variable = build_mask("block_sparse_variable", seqlen=2000, num_kv_heads=2)
    # blocks that start at any token, with few heads in them
    odd = [
        (build_mask(name, seqlen=1501, num_kv_heads=kv_heads), heads, kv_heads, 128)
        for name in ("causal", "causal_document", "block_sparse_variable")
        for heads, kv_heads in ((4, 4), (6, 2), (12, 6))
    ]
    odd += [
        (build_mask("sliding_window", seqlen=1003, window=70), 3, 3, 128),
        (build_mask("shared_question", seqlen=1501), 12, 6, 128),
    ]
    return [
        *((mask, 8, 1, 128) for mask in small),
        *blocks,
        (variable, 8, 2, 128),
        (small[2], 16, 1, 128),
        (small[2], 3, 3, 128),
        (small[3], 6, 3, 128),
        (small[2], 8, 2, 64),
        *odd,
    ]


def cases(variant: str) -> list[tuple[Mask, int, int, int]]:
    """Lists the checks of a variant, smallest first. Backward leaves out one query, whose gradients are
    rounding errors."""
    chosen = [case for case in checks() if variant in FORWARD or (case[3] == 128 and case[0].seqlen_q > 1)]
    return sorted(chosen, key=lambda case: (case[0].seqlen_q, case[1]))


def run(action: str, variant: str, first: int) -> None:
    """Runs cases in this process; prints a line when a case starts and one with its result."""
    for place, case in enumerate(cases(variant)[first:] if action == "--check" else (), first):
        print(json.dumps({"kind": "start", "place": place, "what": describe(*case)}), flush=True)
        print(json.dumps(check(variant, *case)), flush=True)
    for case in TIMES if action == "--time" else ():
        if variant == "bwd portable" or variant in FORWARD or not case[0].endswith(" 64"):
            print(json.dumps(measure(variant, *case)), flush=True)


def command(action: str, variant: str, first: int) -> list[str]:
    return [sys.executable, "-m", "benchmarks.band.sm90_try", action, variant, str(first)]


def follow(
    action: str, variant: str, first: int, timeout_s: float, tell: Callable[[dict], None]
) -> tuple[int, str]:
    """Runs a process, passes its rows on as they come, stops it when none came for `timeout_s`; returns (exit
    status, end of its log)."""
    process = subprocess.Popen(
        command(action, variant, first), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stderr is not None
    log: list[str] = []
    errors = threading.Thread(target=log.extend, args=(process.stderr,))
    errors.start()
    while True:
        stop = threading.Timer(timeout_s, process.kill)
        stop.start()
        line = process.stdout.readline()
        stop.cancel()
        if not line:
            break
        if line.startswith("{"):
            tell(json.loads(line))
    process.wait()
    errors.join()
    return process.returncode, "".join(log)[-1500:]


def check_all(variant: str, results: Results) -> None:
    """Checks all cases, up to some failures. A case that ends its process counts as infinitely wrong; the
    next process starts after it."""
    first, number = 0, len(cases(variant))
    last: list[dict] = []

    def tell(row: dict) -> None:
        if row["kind"] == "start":
            last[:] = [row]
        else:
            results.add(variant, row)

    for _ in range(MOST_FAILURES):
        if first == number:
            return
        last.clear()
        status, log = follow("--check", variant, first, CASE_TIMEOUT_S, tell)
        if status == 0:
            return
        if not last:
            print(f"== checks of {variant}: exit {status} before the first case\n{log}", flush=True)
            return
        how = "HUNG, stopped" if status == -9 else f"exit {status}"
        print(f"== {variant}: {how} in {last[0]['what']}\n{log}", flush=True)
        results.add(
            variant,
            {"kind": "check", "what": f"{last[0]['what']}: {how}", "errors": [float("inf")], "lse": 0.0},
        )
        first = last[0]["place"] + 1


def show_checks(results: Mapping[str, Sequence[dict]]) -> None:
    for name, rows in results.items():
        bad = [row for row in rows if not (max(row["errors"]) < 6e-3 and row["lse"] < 1e-3)]
        good = [max(row["errors"]) for row in rows if row not in bad]
        print(
            f"{name}: {len(good)} checks passed, worst error {max(good, default=float('nan')):.2e}",
            flush=True,
        )
        for row in bad:
            print(
                f"  WRONG {row['what']}: {' '.join(f'{error:.2e}' for error in row['errors'])}, LSE "
                f"{row['lse']:.2e}",
                flush=True,
            )


def show_times(results: Mapping[str, Sequence[dict]], cases: Sequence[str]) -> None:
    print(f"\n{'TFLOP/s':40}" + "".join(f"{name:>14}" for name in results))
    for what in cases:
        cells = [
            sum(row["tflops"] for row in rows if row["kind"] == "time" and row["what"] == what)
            for rows in results.values()
        ]
        print(f"{what:40}" + "".join(f"{cell:14.0f}" if cell else f"{'-':>14}" for cell in cells), flush=True)


def main(out: Path, variants: Sequence[str]) -> None:
    results, titles = Results(out, variants), [title(*case) for case in TIMES]
    threads = [threading.Thread(target=check_all, args=(name, results)) for name in variants]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    show_checks(results.rows)
    for name in variants:
        if results.to_be_timed(name):
            status, log = follow("--time", name, 0, CASE_TIMEOUT_S, partial(results.add, name))
            print(f"== times of {name}: exit {status}\n{log if status else ''}", flush=True)
            show_times({name: results.rows[name]}, titles)
    show_times(results.rows, titles)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the options; by default, variants that were timed least come first."""
    known = *BACKWARD, *FORWARD
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.band.sm90_try", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("out", nargs="?", type=Path, default=Path("band_hopper_try.json"), metavar="OUT.json")
    parser.add_argument("variants", nargs="*", default=list(known), metavar="VARIANT", help=", ".join(known))
    options = parser.parse_args(arguments)
    ways = {name: split_variant(name) for name in options.variants}
    if unknown := [
        name for name, (way, others) in ways.items() if way not in (OF_SECTIONS if others else known)
    ]:
        parser.error(f"{', '.join(unknown)}: not among {', '.join(known)}")
    return options


if __name__ == "__main__":
    if sys.argv[1:2] in (["--check"], ["--time"]):
        run(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    else:
        given = parse(sys.argv[1:])
        main(given.out, given.variants)
