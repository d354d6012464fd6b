"""Tells what the limit costs from which on row tiles are split, by a simulation of the programs of a forward
call. No GPU is needed.

    python -m benchmarks.band.splits [--heads 64:64] [--write docs/results/h100/kernels.md]

Programs take work tiles in the order of the plan, each when it is free. A work tile takes time for each of
its blocks and some besides. A split also writes a partial result, which another kernel reads. The times below
are rough ones of an H100; what hides them is a guess.
"""

from __future__ import annotations

import argparse
import heapq
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.common.text import percent
from longca.core.units import format_length, parse_heads
from longca.masks.build import build_mask
from longca.masks.mask import Mask
from longca.ops.band.config import SM90_FORWARD, BandKernel
from longca.ops.band.plan import RESIDENT_PROGRAMS, make_schedules, plan_band_attention
from longca.ops.band.tables.schedule import NUM_FULL, PARTIAL_END, PARTIAL_START, SLOT, TileSchedule, TileSpec
from tools.table import Table, add_options

MASKS = (
    "full",
    "causal",
    "full_document",
    "causal_document",
    "sliding_window",
    "causal_sliding_window",
    "shared_question",
    "causal_blockwise",
    "prefix_lm",
    "prefix_lm_document",
    "global_sliding_window",
    "block_causal_document",
)
LENGTHS = {8192: "pile", 32768: "prolong64k"}  # → corpus of documents
HEAD_DIM, PROGRAMS = 128, 132
BLOCK_US, WORK_TILE_US, SPLIT_US = 1.5, 2.5, 1.5  # of 128 x 128; of a work tile besides; of a split besides
# of partial results, written and read; of that, what nothing else hides
PARTIAL_BYTES_PER_US, READ_SHARE = 3.0e6, 0.8
RULES = ("earlier", "present", "none")


@dataclass(frozen=True)
class Simulated:
    """A forward call under one limit."""

    time_us: float
    split: float
    """share of the row tiles"""


def simulated(mask: Mask, num_q_heads: int, num_kv_heads: int) -> dict[str, Simulated]:
    """The call under the earlier limit (1/264 of the work of the heads that start together), the present one,
    and none."""
    plan = plan_band_attention(
        mask,
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        head_dim=HEAD_DIM,
        device="cpu",
        needs_backward=False,
        tiles={BandKernel.FORWARD: SM90_FORWARD},
    )
    present, config = plan.kernels[BandKernel.FORWARD]
    pack = config.block_m // present.tile_m
    packs_at_once = config.kv_heads_per_section * num_q_heads // num_kv_heads // pack

    def limited(fraction: float) -> TileSchedule:
        spec = TileSpec(present.tile_m, present.tile_n, False, fraction, narrow_n=config.narrow_n)
        return make_schedules(mask, [spec], torch.device("cpu"))[0]

    schedules = {
        "earlier": limited(packs_at_once / RESIDENT_PROGRAMS),
        "present": present,
        "none": limited(1.0),
    }
    return {
        rule: _simulated(schedule, packs_at_once, num_q_heads // pack, config.block_m)
        for rule, schedule in schedules.items()
    }


def _simulated(schedule: TileSchedule, packs_at_once: int, packs: int, rows: int) -> Simulated:
    work_tiles = schedule.work_tiles[0].numpy()
    blocks, is_split = (
        work_tiles[:, NUM_FULL] + work_tiles[:, PARTIAL_END] - work_tiles[:, PARTIAL_START],
        work_tiles[:, SLOT] >= 0,
    )
    costs = np.repeat(blocks * BLOCK_US + WORK_TILE_US + is_split * SPLIT_US, packs_at_once).tolist()
    ends = [0.0] * PROGRAMS
    for cost in costs * (packs // packs_at_once):
        heapq.heapreplace(ends, ends[0] + cost)
    partial_bytes = 2 * 4 * HEAD_DIM * rows * schedule.num_slots * packs
    num_row_tiles = int((~is_split).sum()) + schedule.splits.shape[1]
    return Simulated(
        max(ends) + READ_SHARE * partial_bytes / PARTIAL_BYTES_PER_US,
        schedule.splits.shape[1] / num_row_tiles,
    )


def table(num_q_heads: int, num_kv_heads: int) -> Table:
    """All static masks at two lengths."""
    rows, records = [], []
    for name in MASKS:
        row = [name]
        for seqlen, corpus in LENGTHS.items():
            found = simulated(build_mask(name, seqlen=seqlen, corpus=corpus), num_q_heads, num_kv_heads)
            records.append(
                {
                    "mask": name,
                    "seqlen": seqlen,
                    "heads": f"{num_q_heads}:{num_kv_heads}",
                    **{
                        f"{rule}: {field}": getattr(one, field)
                        for rule, one in found.items()
                        for field in ("time_us", "split")
                    },
                }
            )
            row += [
                percent(found["earlier"].split, signed=False),
                percent(found["present"].split, signed=False),
                *(f"{found[rule].time_us / found['earlier'].time_us:.2f}" for rule in RULES[1:]),
            ]
        rows.append(tuple(row))
    means = {
        rule: statistics.geometric_mean(one[f"{rule}: time_us"] / one["earlier: time_us"] for one in records)
        for rule in RULES[1:]
    }
    caption = (
        f"Simulated, not measured: forward calls with {num_q_heads}:{num_kv_heads} heads, row tiles that are "
        f"split by the earlier "
        "limit and by the present one, and time over that by the earlier one, with the present limit and "
        "without splits. In the "
        f"geometric mean {means['present']:.2f} and {means['none']:.2f}."
    )
    columns = (
        "mask",
        *(
            f"{format_length(seqlen)}: {word}"
            for seqlen in LENGTHS
            for word in ("split earlier", "split now", "time now", "without")
        ),
    )
    return Table("band_splits", caption, columns, tuple(rows), tuple(records), ("mask",))


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.band.splits", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("--heads", type=parse_heads, default=(64, 64), help="query and KV heads (64:64)")
    add_options(parser)
    options = parser.parse_args(arguments)
    table(*options.heads).publish(options)


if __name__ == "__main__":
    main(sys.argv[1:])
