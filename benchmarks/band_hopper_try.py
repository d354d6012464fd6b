"""Checks and times the Hopper forward kernel of band attention, one process a variant: python benchmarks/band_hopper_try.py [OUT.json]."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

from longca.ops.band_lines import Lines

VARIANTS = {"plain": (2, False, False), "pin": (2, False, True), "ping-pong": (2, True, False), "both": (2, True, True)}
TIMEOUT_S = 45
CHECKS = [  # mask, queries, keys, query heads, KV heads, heads that share a tile, dtype
    ("full", 128, 128, 1, 1, 1, "bfloat16"), ("full", 512, 512, 4, 2, 1, "bfloat16"), ("causal", 1024, 1024, 4, 2, 1, "bfloat16"),
    ("causal", 1000, 1000, 8, 2, 1, "bfloat16"), ("full", 300, 777, 4, 4, 1, "bfloat16"), ("documents", 1500, 1500, 4, 2, 1, "bfloat16"),
    ("window", 2000, 2000, 2, 1, 1, "bfloat16"), ("gaps", 900, 900, 4, 2, 1, "bfloat16"), ("causal", 1000, 1000, 8, 2, 2, "bfloat16"),
    ("documents", 1500, 1500, 8, 1, 4, "float16"), ("causal", 20000, 20000, 2, 1, 1, "bfloat16"),
]
TIMES = [("full", 8192), ("causal", 8192), ("documents", 8192), ("full", 32768), ("causal", 32768), ("documents", 32768), ("window", 32768)]


def row_ranges(name: str, num_q: int, num_k: int) -> tuple[np.ndarray, np.ndarray]:
    """The keys [begin, end) that each query sees."""
    row = np.arange(num_q)
    if name == "full":
        return np.zeros(num_q, int), np.full(num_q, num_k)
    if name == "causal":
        return np.zeros(num_q, int), np.minimum(row + 1, num_k)
    if name == "window":
        return np.maximum(row - 1024, 0), np.minimum(row + 1, num_k)
    cuts = np.sort(np.random.default_rng(0).choice(np.arange(1, num_q), 20, replace=False))
    start = np.concatenate([[0], cuts])[np.searchsorted(cuts, row, side="right")]
    end = row + 1
    if name == "gaps":  # every third document sees nothing
        end = np.where(np.searchsorted(cuts, row, side="right") % 3 == 1, start, end)
    return start, end


def make_lines(begin: np.ndarray, end: np.ndarray, tile: int, step: int) -> Lines:
    pieces, runs, shapes = [], [], []
    for row0 in range(0, len(begin), tile):
        row1 = min(row0 + tile, len(begin))
        b, e = begin[row0:row1], end[row0:row1]
        some = b < e
        left, right = (b[some].min(), e[some].max()) if some.any() else (0, 0)
        full0, full1 = (b.max(), e.min()) if some.all() else (0, 0)
        full0 = left - -(full0 - left) // step * step
        num_full = max((full1 - full0) // step, 0)
        solid = set(range(full0, full0 + num_full * step, step))
        first = len(runs)
        if num_full:
            runs.append((full0, num_full))
        middle = len(runs)
        for column in range(left, right, step):
            if column not in solid:
                shape = np.zeros(tile, np.int64)
                inside = np.clip(b - column, 0, step), np.clip(e - column, 0, step)
                shape[: row1 - row0] = np.where(inside[0] < inside[1], inside[0] | inside[1] << 16, 0)
                runs.append((column, len(shapes)))
                shapes.append(shape)
        pieces.append((row0, row1, first, middle, len(runs), num_full, -1, 0))
    pieces.sort(key=lambda piece: piece[3] - piece[4] - piece[5])
    tables = [np.array(pieces)[None], np.array(runs or [(0, 0)]), np.array(shapes or [[0] * tile]), np.zeros((1, 0, 4))]
    return Lines(tile, step, *(torch.from_numpy(np.ascontiguousarray(t, dtype=np.int32)).cuda() for t in tables), 0)


def inputs(num_q: int, num_k: int, heads: int, kv_heads: int, dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(n, h, 128, device="cuda", dtype=dtype) for n, h in ((num_q, heads), (num_k, kv_heads), (num_k, kv_heads))]


def check(config, mask: str, num_q: int, num_k: int, heads: int, kv_heads: int, pack: int, dtype: str) -> dict:
    from longca.ops.band_hopper import forward

    q, k, v = inputs(num_q, num_k, heads, kv_heads, getattr(torch, dtype))
    begin, end = row_ranges(mask, num_q, num_k)
    out, lse = forward(q, k, v, make_lines(begin, end, 128 // pack, 128), 128**-0.5, config)
    torch.cuda.synchronize()
    rows = np.unique(np.linspace(0, num_q - 1, 2000).astype(int))  # float64 scores of all rows would not fit where there are many
    column = torch.arange(num_k, device="cuda")
    low, high = (torch.from_numpy(x[rows]).cuda()[:, None] for x in (begin, end))
    errors, worst_lse = [], 0.0
    for head in range(heads):
        kv = head // (heads // kv_heads)
        s = (q[rows, head].double() @ k[:, kv].double().T) * 128**-0.5
        s = s.masked_fill(~((column >= low) & (column < high)), -torch.inf)
        want_lse = torch.logsumexp(s, 1)
        want = torch.exp(s - torch.where(want_lse.isinf(), 0.0, want_lse)[:, None]) @ v[:, kv].double()
        got = out[rows, head].double()
        errors.append(float((got - want).norm() / want.norm()) if bool(got.isfinite().all()) else float("nan"))
        delta = torch.where(want_lse.isinf(), (lse[head, rows].isinf() == 0).double(), (lse[head, rows] - want_lse).abs())
        worst_lse = max(worst_lse, float(delta.max()))
    what = f"{mask} {num_q}x{num_k} {heads}:{kv_heads} pack {pack} {dtype}"
    return {"kind": "check", "what": what, "error": max(errors), "lse": worst_lse}


def time_ms(call) -> float:
    for _ in range(3):
        call()
    times = []
    for _ in range(10):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        call()
        b.record()
        torch.cuda.synchronize()
        times.append(a.elapsed_time(b))
    return float(np.median(times))


def measure(config, mask: str, seqlen: int) -> dict:
    from longca.ops.band_hopper import forward

    q, k, v = inputs(seqlen, seqlen, 64, 8, torch.bfloat16)
    begin, end = row_ranges(mask, seqlen, seqlen)
    lines = make_lines(begin, end, 128, 128)
    ms = time_ms(lambda: forward(q, k, v, lines, 128**-0.5, config))
    return {"kind": "time", "what": f"{mask} {seqlen}", "tflops": 4 * int((end - begin).sum()) * 64 * 128 / ms / 1e9, "ms": ms}


def anchor(seqlen: int, causal: bool) -> dict:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = (x.transpose(0, 1)[None] for x in inputs(seqlen, seqlen, 64, 8, torch.bfloat16))
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        ms = time_ms(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True))
    flops = 4 * seqlen**2 * 64 * 128 / (1 + causal)
    return {"kind": "time", "what": f"{'causal' if causal else 'full'} {seqlen}", "tflops": flops / ms / 1e9, "ms": ms}


def run_variant(name: str) -> None:
    if name == "cuDNN":
        for mask, seqlen in TIMES:
            if mask in ("full", "causal"):
                print(json.dumps(anchor(seqlen, mask == "causal")), flush=True)
        return
    from longca.ops.band_hopper import ForwardConfig

    config = ForwardConfig(*VARIANTS[name])
    for case in CHECKS:
        print(json.dumps(check(config, *case)), flush=True)
    for case in TIMES:
        print(json.dumps(measure(config, *case)), flush=True)


def main(out: Path) -> None:
    results: dict[str, list[dict]] = {}
    for name in [*VARIANTS, "cuDNN"]:
        try:
            command = [sys.executable, __file__, "--variant", name]
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
            text, log, end = done.stdout, done.stderr, f"exit {done.returncode}"
        except subprocess.TimeoutExpired as late:
            text, log, end = (late.stdout or b"").decode(), (late.stderr or b"").decode(), "timeout"
        results[name] = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        print(f"== {name}: {end}, {len(results[name])} results\n{log[-1500:] if end != 'exit 0' else ''}", flush=True)
    out.write_text(json.dumps(results, indent=1))
    for name, rows in results.items():
        bad = [row for row in rows if row["kind"] == "check" and not (row["error"] < 4e-3 and row["lse"] < 1e-3)]
        good = [row["error"] for row in rows if row["kind"] == "check" and row not in bad]
        print(f"{name}: {len(good)} checks passed, worst error {max(good, default=float('nan')):.2e}")
        for row in bad:
            print(f"  WRONG {row['what']}: out {row['error']:.2e}, LSE {row['lse']:.2e}")
    print(f"\n{'TFLOP/s':18}" + "".join(f"{name:>11}" for name in results))
    for mask, seqlen in TIMES:
        cells = [next((row["tflops"] for row in rows if row["kind"] == "time" and row["what"] == f"{mask} {seqlen}"), None)
                 for rows in results.values()]
        print(f"{mask:10}{seqlen:<8}" + "".join(f"{cell:11.0f}" if cell else f"{'-':>11}" for cell in cells))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--variant"]:
        run_variant(sys.argv[2])
    else:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else "band_hopper_try.json"))
