"""Checks and times the Hopper forward kernel of band attention, one process a variant: python benchmarks/band_hopper_try.py [OUT.json].

Columns of the table: the kernel with neither, one or both of its two tricks, and with fewer heads sharing a tile; the portable
kernel; cuDNN for what it can.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

from longca.masks import build_mask
from longca.masks.band import make
from longca.masks.mask import Mask

VARIANTS = {"none": (False, False, 8), "pin": (False, True, 8), "turns": (True, False, 8), "both": (True, True, 8),
            "both 2": (True, True, 2), "both 1": (True, True, 1), "portable": None,
            "cuDNN": None}  # take turns, pin, heads that share a tile
MANY = ("full", "causal", "causal_document", "sliding_window", "prefix_lm", "global_sliding_window", "shared_question",
                          "block_causal_document", "block_sparse_uniform")
TIMES = [("full", 8192), ("causal", 8192), ("causal_document", 8192), *((mask, 32768) for mask in MANY)]
TIMEOUT_S = 40


def forward(variant: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Mask, carried=None):
    """A call that computes (out, LSE)."""
    from longca.ops import band_forward, band_hopper
    from longca.ops.band_config import Use
    from longca.ops.band_plan import make_lines, pack_size, plan_band_attention

    heads, kv_heads = q.shape[1], k.shape[1]
    plan = plan_band_attention(mask, num_q_heads=heads, num_kv_heads=kv_heads, head_dim=128, device=q.device, needs_backward=False)
    out, lse = torch.empty_like(q), torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    if variant == "portable":
        lines, tuned = plan.kernels[Use.FORWARD]
        pack = tuned.rows // lines.tile
        run, config = band_forward.forward, tuned
    else:
        turns, pin, most = VARIANTS[variant]
        pack = min(most, pack_size(heads // kv_heads, 128))
        lines = make_lines(mask, 128 // pack, 128, transposed=False, device=q.device,
                           longest=plan.kv_heads_at_once * (heads // kv_heads) / pack / (4 * 132))
        run, config = band_hopper.forward, band_hopper.ForwardConfig(2, turns, pin)
    at_once = plan.kv_heads_at_once * (heads // kv_heads) // pack

    def call():
        run(q, k, v, lines, 128**-0.5, config, packs_at_once=at_once, out=out, lse=lse, carried=carried)
        return out, lse

    return call


def inputs(num_q: int, num_k: int, heads: int, kv_heads: int, dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(n, h, 128, device="cuda", dtype=dtype) for n, h in ((num_q, heads), (num_k, kv_heads), (num_k, kv_heads))]


def checks(whole: bool) -> list[tuple[Mask, int, int]]:
    """(mask, query heads, KV heads)."""
    if not whole:
        return [(build_mask("causal", seqlen=1000), 8, 1), (build_mask("causal_document", seqlen=1500), 16, 2)]
    ragged = Mask(300, 777, (make([0, 100], [90, 300], [0, 5], [700, 777], [-20, -(1 << 40)], [300, 400]),), name="ragged with empty rows")
    names = "full", "causal_document", "prefix_lm_document", "shared_question", "causal_blockwise"
    small = [ragged, *(build_mask(name, seqlen=1500) for name in names), build_mask("sliding_window", seqlen=1000, window=70),
             build_mask("global_sliding_window", seqlen=3000, num_global=100, window=200)]
    return [*((mask, 8, 1) for mask in small), (build_mask("global_sliding_window", seqlen=20000), 8, 1),
            (build_mask("block_sparse_uniform", seqlen=2048, num_kv_heads=2), 16, 2), (build_mask("causal", seqlen=1), 8, 1)]


def check(variant: str, mask: Mask, heads: int, kv_heads: int) -> dict:
    q, k, v = inputs(mask.seqlen_q, mask.seqlen_k, heads, kv_heads)
    out, lse = forward(variant, q, k, v, mask)()
    torch.cuda.synchronize()
    rows = np.unique(np.linspace(0, mask.seqlen_q - 1, 1000).astype(int))  # float64 scores of all rows would not fit where there are many
    errors, worst_lse = [], 0.0
    for head in range(heads):
        kv = head // (heads // kv_heads)
        bands = mask.groups[kv * mask.num_groups // kv_heads]
        offset = np.arange(mask.seqlen_k)[None] - rows[:, None]
        seen = np.zeros(offset.shape, bool)
        for q0, q1, k0, k1, lo, hi in bands.tolist():
            seen |= ((rows >= q0) & (rows < q1))[:, None] & (offset >= max(lo, -(1 << 31))) & (offset <= hi) & (
                (np.arange(mask.seqlen_k) >= k0) & (np.arange(mask.seqlen_k) < k1))[None]
        s = (q[rows, head].double() @ k[:, kv].double().T) * 128**-0.5
        s = s.masked_fill(~torch.from_numpy(seen).cuda(), -torch.inf)
        want_lse = torch.logsumexp(s, 1)
        want = torch.exp(s - torch.where(want_lse.isinf(), 0.0, want_lse)[:, None]) @ v[:, kv].double()
        got, got_lse = out[rows, head].double(), lse[rows, head].double()
        errors.append(float((got - want).norm() / want.norm()) if bool(got.isfinite().all()) else float("inf"))
        delta = torch.where(want_lse.isinf(), torch.where(got_lse.isinf(), 0.0, 1.0), (got_lse - want_lse).abs())
        worst_lse = max(worst_lse, float(delta.max()))
    return {"kind": "check", "what": f"{mask.name} {mask.seqlen_q} {heads}:{kv_heads}", "error": max(errors), "lse": worst_lse}


def time_ms(call) -> float:
    for _ in range(3):
        call()
    times = []
    for _ in range(10):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return float(np.median(times))


def measure(variant: str, name: str, seqlen: int) -> dict | None:
    mask = build_mask(name, seqlen=seqlen, corpus="prolong64k", num_kv_heads=8)
    q, k, v = inputs(seqlen, seqlen, 64, 8)
    if variant != "cuDNN":
        call = forward(variant, q, k, v, mask)
    elif name in ("full", "causal"):
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention

        heads_first = [x.transpose(0, 1)[None] for x in (q, k, v)]

        def call():
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return scaled_dot_product_attention(*heads_first, is_causal=name == "causal", enable_gqa=True)
    else:
        return None
    ms = time_ms(call)
    return {"kind": "time", "what": f"{name} {seqlen}", "tflops": 4 * mask.area * 64 // mask.num_groups * 128 / ms / 1e9, "ms": ms}


def run_variant(variant: str) -> None:
    if variant != "cuDNN":
        for case in checks(whole=variant == "both"):
            print(json.dumps(check(variant, *case)), flush=True)
    for case in TIMES:
        row = measure(variant, *case)
        if row:
            print(json.dumps(row), flush=True)


def main(out: Path) -> None:
    results: dict[str, list[dict]] = {}
    for name in VARIANTS:
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
    print(f"\n{'TFLOP/s':30}" + "".join(f"{name:>9}" for name in results))
    for mask, seqlen in TIMES:
        cells = [next((row["tflops"] for row in rows if row["kind"] == "time" and row["what"] == f"{mask} {seqlen}"), None)
                 for rows in results.values()]
        print(f"{mask:22}{seqlen:<8}" + "".join(f"{cell:9.0f}" if cell else f"{'-':>9}" for cell in cells))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--variant"]:
        run_variant(sys.argv[2])
    else:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else "band_hopper_try.json"))
