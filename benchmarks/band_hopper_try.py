"""Checks and times the Hopper kernels of band attention: python -m benchmarks.band_hopper_try [OUT.json].

Each variant has its processes: all check side by side, then each is timed alone.

Forward: the Hopper kernel, which nothing else chooses, and the portable one. Backward: all gradients in one pass; dK and dV in
that kernel without dQ; both portable kernels.
TFLOP/s are of the mask's area: 4 · area · heads · head dim forward, 10 backward.
"""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.band_hopper_checks import checks, inputs, reference
from longca.masks import build_mask
from longca.masks.mask import Mask

FORWARD, BACKWARD = ("fwd", "fwd portable"), ("bwd fused", "bwd", "bwd portable")
DENSE = ("full", "causal", "causal_document", "sliding_window", "prefix_lm", "global_sliding_window", "shared_question",
         "block_causal_document")
TIMES = [*((name, 8192, 64, 8) for name in DENSE[:3]), *((name, 32768, 64, 8) for name in DENSE),
         *((f"block_sparse_uniform {block}", 32768, 64, 8) for block in (64, 128)), ("block_sparse_uniform 64", 32768, 64, 64)]
CHECKS_TIMEOUT_S, TIMES_TIMEOUT_S = 75, 40


def mask_of(name: str, seqlen: int, kv_heads: int) -> Mask:
    name, _, block = name.partition(" ")
    params = {"block": int(block), "density": 0.5} if block else {}
    return build_mask(name, seqlen=seqlen, corpus="prolong64k", num_kv_heads=kv_heads, **params)


def forward(variant: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Mask):
    """A call that computes (out, LSE)."""
    from longca.ops.band_attention import band_forward
    from longca.ops.band_config import HOPPER_FORWARD, TUNED, Use
    from longca.ops.band_plan import plan_band_attention

    tuned = dict(TUNED[q.shape[2]])
    if variant == "fwd":
        tuned[Use.FORWARD] = HOPPER_FORWARD
    plan = plan_band_attention(mask, num_q_heads=q.shape[1], num_kv_heads=k.shape[1], head_dim=q.shape[2], device=q.device,
                               needs_backward=False, tuned=tuned)
    return lambda: band_forward(q, k, v, plan)


def backward(variant: str, q, k, v, out, lse, dout, mask: Mask):
    """A call that computes (dq, dk, dv)."""
    from longca.ops.band_attention import band_backward
    from longca.ops.band_config import HOPPER_KEYS, TUNED, Use
    from longca.ops.band_plan import plan_band_attention

    tuned = dict(TUNED[128])
    if variant != "bwd portable":
        tuned[Use.KEYS] = HOPPER_KEYS
    if variant == "bwd fused":
        del tuned[Use.QUERIES]
    plan = plan_band_attention(mask, num_q_heads=q.shape[1], num_kv_heads=k.shape[1], head_dim=128, device=q.device, tuned=tuned)
    return lambda: band_backward(q, k, v, out, lse, dout, plan)


def check(variant: str, mask: Mask, heads: int, kv_heads: int, head_dim: int) -> dict:
    q, k, v, dout = inputs(mask.seqlen_q, mask.seqlen_k, heads, kv_heads, head_dim)
    want = reference(q, k, v, dout, mask)
    worst_lse = 0.0
    if variant in FORWARD:
        out, lse = forward(variant, q, k, v, mask)()
        got, want = [out], [want[0], want[1]]
        empty = want[1].isinf()
        worst_lse = float(torch.where(empty, torch.where(lse.isinf(), 0.0, 1.0), (lse.double() - want[1]).abs()).max())
    else:
        got = backward(variant, q, k, v, want[0].bfloat16(), want[1].float(), dout, mask)()
        want = want[2:]
    torch.cuda.synchronize()
    errors = [float((a.double() - b).norm() / b.norm().clamp(min=1e-9)) if bool(a.isfinite().all()) else float("inf")
              for a, b in zip(got, want, strict=False)]
    return {"kind": "check", "what": f"{mask.name} {mask.seqlen_q} {heads}:{kv_heads} D{head_dim}", "errors": errors, "lse": worst_lse}


def time_ms(call) -> float:
    for _ in range(2):
        call()
    times = []
    for _ in range(7):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return float(np.median(times))


def measure(variant: str, name: str, seqlen: int, heads: int, kv_heads: int) -> dict:
    mask = mask_of(name, seqlen, kv_heads)
    q, k, v, dout = inputs(seqlen, seqlen, heads, kv_heads)
    if variant in FORWARD:
        call, products = forward(variant, q, k, v, mask), 4
    else:
        out, lse = forward("fwd portable", q, k, v, mask)()
        call, products = backward(variant, q, k, v, out, lse, dout, mask), 10
    ms = time_ms(call)
    flops = products * mask.area * heads // mask.num_groups * 128
    return {"kind": "time", "what": f"{name} {seqlen} {heads}:{kv_heads}", "tflops": flops / ms / 1e9, "ms": ms}


def run(action: str, variant: str) -> None:
    """Prints a line a result."""
    for case in checks() if action == "--check" else ():
        if variant in FORWARD or (case[3] == 128 and case[0].seqlen_q > 1):  # of one query the gradients are rounding errors
            print(json.dumps(check(variant, *case)), flush=True)
    for case in TIMES if action == "--time" else ():
        if variant not in ("bwd", "bwd fused") or not case[0].endswith(" 64"):
            print(json.dumps(measure(variant, *case)), flush=True)


def start(action: str, variant: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "benchmarks.band_hopper_try", action, variant]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen, what: str, timeout_s: float) -> list[dict]:
    """What it printed until it ended or was stopped."""
    stop = threading.Timer(max(timeout_s, 1), process.kill)
    stop.start()
    text, log = process.communicate()
    stop.cancel()
    rows = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    print(f"== {what}: exit {process.returncode}, {len(rows)} results\n{log[-1500:] if process.returncode else ''}", flush=True)
    return rows


def main(out: Path) -> None:
    begin = time.monotonic()
    checking = {name: start("--check", name) for name in (*FORWARD, *BACKWARD)}
    results = {name: finish(process, f"checks of {name}", begin + CHECKS_TIMEOUT_S - time.monotonic())
               for name, process in checking.items()}
    for name, rows in results.items():
        if checking[name].returncode >= 0:  # it ended by itself
            rows += finish(start("--time", name), f"times of {name}", TIMES_TIMEOUT_S)
        out.write_text(json.dumps(results, indent=1))
    for name, rows in results.items():
        bad = [row for row in rows if row["kind"] == "check" and not (max(row["errors"]) < 6e-3 and row["lse"] < 1e-3)]
        good = [max(row["errors"]) for row in rows if row["kind"] == "check" and row not in bad]
        print(f"{name}: {len(good)} checks passed, worst error {max(good, default=float('nan')):.2e}")
        for row in bad:
            print(f"  WRONG {row['what']}: {' '.join(f'{error:.2e}' for error in row['errors'])}, LSE {row['lse']:.2e}")
    print(f"\n{'TFLOP/s':40}" + "".join(f"{name:>14}" for name in results))
    for name, seqlen, heads, kv_heads in TIMES:
        what = f"{name} {seqlen} {heads}:{kv_heads}"
        cells = [sum(row["tflops"] for row in rows if row["kind"] == "time" and row["what"] == what) for rows in results.values()]
        print(f"{what:40}" + "".join(f"{cell:14.0f}" if cell else f"{'-':>14}" for cell in cells))


if __name__ == "__main__":
    if sys.argv[1:2] in (["--check"], ["--time"]):
        run(*sys.argv[1:3])
    else:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else "band_hopper_try.json"))
