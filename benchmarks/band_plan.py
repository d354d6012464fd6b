"""Plans of band attention at 512K tokens, forward and backward: milliseconds (best of three, after one) and megabytes.

    python benchmarks/band_plan.py [tokens]
"""

import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.masks_512k import DYNAMIC
from longca.core.plugin import Registry
from longca.core.units import parse_length
from longca.masks import build_mask
from longca.ops.band_plan import plan_band_attention


def main(seqlen: int) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(f"{'mask':24} {'ms':>8} {'MB':>8} {'peak MB':>8}  pieces, runs, shapes of each kernel")
    for name in Registry("mask").names():
        mask = build_mask(name, seqlen=seqlen, corpus="prolong512k", **DYNAMIC.get(name, {}))
        times = []
        for _ in range(4):
            start = time.perf_counter()
            plan = plan_band_attention(mask, num_q_heads=64, num_kv_heads=8, head_dim=128, device=device)
            if device.type == "cuda":
                torch.cuda.synchronize()
            times.append((time.perf_counter() - start) * 1e3)
        peak = torch.cuda.max_memory_allocated() / 1e6 if device.type == "cuda" else 0
        sizes = "  ".join(f"{lines.pieces.shape[1]}, {len(lines.runs)}, {len(lines.shapes)}" for lines, _ in plan.kernels.values())
        print(f"{name:24} {min(times[1:]):8.2f} {plan.num_bytes / 1e6:8.2f} {peak:8.0f}  {sizes}", flush=True)
        del plan
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main(parse_length(sys.argv[1] if len(sys.argv) > 1 else "512K"))
