"""Measures plans of new documents: CPU milliseconds of a rank that makes them, from a mask to its kernels'
tables.

    python -m benchmarks.cp.planning [--ranks 4] [--tokens 16K,32K] [--masks causal_document,causal]
                                     [--strategies auto,ring_p2p] [--draws 6] [--rounds 4] [--profile]

No GPU is needed: tables are those of a Hopper GPU, built on the host, and not copied to a device. Each draw
has other documents, of ProLong's lengths, so that nothing can be reused of the plan before; masks without
documents get a new context. The strategy "one GPU" is `plan_band_attention` alone, with as many tokens as a
rank has. 64:8 heads, head dim 128, bf16, with a backward pass. "Mean" and "most" are over the draws, in CPU
time, which neighbours disturb less than the wall clock's; a plan waits for nothing. "Mask" is the time to
build the mask before.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.common.text import machine
from longca.core import format_length, parse_length
from longca.cp.calls.estimates import Estimator
from longca.cp.calls.planning import MaskPlan, MaskPlanner
from longca.cp.calls.request import AUTO, CpRequest, parse_strategy
from longca.masks import Mask, build_mask
from longca.ops.band import plan as band_plan
from longca.ops.band import plan_band_attention
from tools.table import Table, add_options

HEADS = (64, 8)
HEAD_DIM = 128
HOPPER = (9, 0)
ONE_GPU = "one GPU"
MASKS = ("causal_document", "full_document", "shared_question", "causal")
STRATEGIES = (AUTO, "ring_p2p", "ring_allgather", "usp", "ulysses", "loongtrain", ONE_GPU)
COLUMNS = (
    "mask",
    "tokens a rank",
    "strategy",
    "mean ms",
    "most ms",
    "mask ms",
    "chosen",
    "sharding",
    "tables",
)
CPU = torch.device("cpu")


@contextmanager
def tables_of_hopper() -> Iterator[None]:
    """Plans on the host have the tables of a Hopper GPU."""
    choose = band_plan.choose_tiles
    with patch.object(band_plan, "choose_tiles", lambda head_dim, _, **how: choose(head_dim, HOPPER, **how)):
        yield


def planner_of(rank: int, world: int, strategy: str) -> MaskPlanner:
    """The planner of a rank, whose messages go nowhere; strategies are chosen as on GPUs."""
    comm: Any = SimpleNamespace(
        rank=rank,
        world=world,
        device=CPU,
        keeps_order=True,
        messages="nccl",
        messages_note="",
        gather=lambda mine: [mine] * world,
        stream=lambda name: SimpleNamespace(post=None, all_to_all=None),
    )
    name, params = parse_strategy(strategy)
    request = CpRequest(name, params, "band", *HEADS, HEAD_DIM, torch.bfloat16, CPU, True, "nccl", "first")
    planner = MaskPlanner(comm, request)
    planner._estimator = Estimator(planner._kernel, "nccl", world, is_fitted=True)
    return planner


def mask_of(name: str, seqlen: int, seed: int) -> Mask:
    return build_mask(name, seqlen=seqlen, corpus="prolong512k", seed=seed)


def plans(strategy: str, world: int, masks: Sequence[Mask]) -> Iterator[tuple[float, MaskPlan | Any]]:
    """(CPU milliseconds, plan) of each mask. Equal masks get a planner each."""
    planner = planner_of(world // 2, world, strategy) if strategy != ONE_GPU else None
    known = set[str]()
    for mask in masks:
        if planner is not None and mask.digest in known:
            planner.close()
            planner = planner_of(world // 2, world, strategy)
        known.add(mask.digest)
        start = time.process_time()
        if planner is None:
            plan: Any = plan_band_attention(
                mask, num_q_heads=HEADS[0], num_kv_heads=HEADS[1], head_dim=HEAD_DIM, device=CPU
            )
        else:
            plan, _ = planner.take((mask,))
        yield (time.process_time() - start) * 1e3, plan
    if planner is not None:
        planner.close()


def measured(name: str, tokens: int, strategy: str, options: argparse.Namespace) -> dict[str, Any]:
    world = 1 if strategy == ONE_GPU else options.ranks
    least = [float("inf")] * options.masks_of_kind
    mask_ms = float("inf")
    plan: Any = None
    for _ in range(options.rounds):
        start = time.process_time()
        masks = [mask_of(name, tokens * world, seed) for seed in range(options.masks_of_kind + 1)]
        mask_ms = min(mask_ms, (time.process_time() - start) / len(masks) * 1e3)
        for number, (ms, made) in enumerate(plans(strategy, world, masks)):
            plan = made
            if number:  # the first one loads things
                least[number - 1] = min(least[number - 1], ms)
    one = strategy == ONE_GPU
    return {
        "mask": name,
        "tokens": tokens,
        "strategy": strategy,
        "mean_ms": statistics.fmean(least),
        "most_ms": max(least),
        "mask_ms": mask_ms,
        "chosen": "" if one else plan.strategy,
        "sharding": "" if one else plan.sharding,
        "tables": 1 if one else sum(int(part.costs.get("num_kernel_calls", 1)) for part in plan.prepared),
    }


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cp.planning", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument(
        "--tokens",
        type=lambda text: [parse_length(part) for part in text.split(",")],
        default=[1 << 14, 1 << 15],
        help="of each rank (16K,32K)",
    )
    parser.add_argument("--masks", type=lambda text: text.split(","), default=MASKS)
    parser.add_argument("--strategies", type=lambda text: text.split(","), default=STRATEGIES)
    parser.add_argument("--draws", dest="masks_of_kind", type=int, default=6, help="masks of each kind (6)")
    parser.add_argument(
        "--rounds", type=int, default=4, help="plans of each mask, of which the least counts (4)"
    )
    parser.add_argument("--profile", action="store_true", help="show in which functions the time goes")
    add_options(parser)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    records = []
    with tables_of_hopper():
        for tokens in options.tokens:
            for strategy in options.strategies:
                for mask in options.masks:
                    records.append(line := measured(mask, tokens, strategy, options))
                    print(*line.values(), flush=True)
                    if options.profile:
                        profile(mask, tokens, strategy, options)
    rows = [
        (
            line["mask"],
            format_length(line["tokens"]),
            line["strategy"],
            f"{line['mean_ms']:.1f}",
            f"{line['most_ms']:.1f}",
            f"{line['mask_ms']:.1f}",
            line["chosen"],
            line["sharding"],
            str(line["tables"]),
        )
        for line in records
    ]
    draws = f"{options.masks_of_kind} masks of each kind, each the least of {options.rounds}"
    caption = f"{options.ranks} ranks; CPU time on one core of {machine(CPU)}. {draws}."
    Table(
        "cp_planning", caption, COLUMNS, tuple(rows), tuple(records), ("mask", "tokens a rank", "strategy")
    ).publish(options)
    return 0


def profile(name: str, tokens: int, strategy: str, options: argparse.Namespace) -> None:
    """Prints the functions of the longest own time."""
    world = 1 if strategy == ONE_GPU else options.ranks
    masks = [mask_of(name, tokens * world, seed) for seed in range(options.masks_of_kind)]
    with cProfile.Profile(time.process_time) as profiler, patch.object(MaskPlanner, "start", _start_at_once):
        for _ in plans(strategy, world, masks):
            pass
    statistics_ = pstats.Stats(profiler)
    statistics_.sort_stats("tottime").print_stats(30)
    statistics_.sort_stats("cumulative").print_stats(60)


def _start_at_once(planner: MaskPlanner, masks: Sequence[Mask]) -> None:
    """`MaskPlanner.start` in this thread, where the profiler sees it."""
    plan = planner._plan(masks)
    planner._started[tuple(mask.digest for mask in masks)] = SimpleNamespace(result=lambda: plan)  # pyright: ignore


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
