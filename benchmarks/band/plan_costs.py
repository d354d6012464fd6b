"""Measures plans of band attention at 512K tokens: milliseconds once warm, torch operations, megabytes,
visible share of computed scores.

    python -m benchmarks.band.plan_costs [--length 512K] [--write docs/results/h200/band.md]

64:8 heads, head dim 128, forward and backward; block masks of 128 at density 0.1, which are the largest
plans.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.common.text import machine
from benchmarks.kernels.masks_512k import DYNAMIC
from longca.core import Registry, format_length, parse_length
from longca.masks import Mask, build_mask
from longca.ops.band import BandPlan, plan_band_attention
from longca.ops.band.config import BandKernel
from longca.ops.band.tables.schedule import NUM_FULL, PARTIAL_END, PARTIAL_START
from tools.table import Table, add_options

COLUMNS = ("mask", "ms", "operations", "MB", "peak MB", "visible share: forward", "dK and dV", "dQ")
ROUNDS = 5


def plan_of(mask: Mask, device: torch.device) -> tuple[float, BandPlan]:
    """Makes a plan and returns (milliseconds, plan)."""
    start = time.perf_counter()
    plan = plan_band_attention(mask, num_q_heads=64, num_kv_heads=8, head_dim=128, device=device)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3, plan


class Operations(TorchDispatchMode):
    """Counts torch operations: on a GPU, a plan takes about as long as they take to start."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def visible_share(mask: Mask, plan: BandPlan, use: BandKernel) -> float | str:
    """Returns the visible share of the computed scores, or "" for dQ where one pass makes all gradients."""
    if use not in plan.kernels:
        return ""
    lines, _ = plan.kernels[use]
    pieces = lines.work_tiles.long()
    steps = int((pieces[..., NUM_FULL] + pieces[..., PARTIAL_END] - pieces[..., PARTIAL_START]).sum())
    return mask.area / max(steps * lines.tile_m * lines.tile_n, 1)


def measured(name: str, seqlen: int, device: torch.device) -> dict[str, float | str]:
    mask = build_mask(name, seqlen=seqlen, corpus="prolong512k", **DYNAMIC.get(name, {}))
    _, plan = plan_of(mask, device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    best_ms = min(plan_of(mask, device)[0] for _ in range(ROUNDS))
    peak = torch.cuda.max_memory_allocated() / 1e6 if device.type == "cuda" else 0.0
    with Operations() as operations:
        plan_of(mask, device)
    return {
        "mask": name,
        "ms": best_ms,
        "operations": operations.count,
        "MB": plan.num_bytes / 1e6,
        "peak_MB": peak,
        **{f"visible_{use.value}": visible_share(mask, plan, use) for use in BandKernel},
    }


def table(records: Sequence[dict[str, Any]], caption: str) -> Table:
    rows = [
        (
            line["mask"],
            f"{line['ms']:.2f}",
            str(line["operations"]),
            f"{line['MB']:.2f}",
            f"{line['peak_MB']:.0f}",
            *(
                f"{100 * share:.1f} %" if (share := line[f"visible_{use.value}"]) != "" else "–"
                for use in BandKernel
            ),
        )
        for line in records
    ]
    return Table("band_plan", caption, COLUMNS, tuple(rows), tuple(records), ("mask",))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.band.plan_costs", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("--length", type=parse_length, default=1 << 19, help="tokens (512K)")
    add_options(parser)
    options = parser.parse_args(arguments)
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    caption = f"{machine(device)}. {format_length(options.length)} tokens, best of {ROUNDS}."
    records = []
    for name in Registry("mask").names():
        records.append(measured(name, options.length, device))
        print(f"{name}: {records[-1]['ms']:.2f} ms, {records[-1]['MB']:.2f} MB", flush=True)
        table(records, caption).save(options.out)
    table(records, caption).publish(options)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
