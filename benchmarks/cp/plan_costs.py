"""Times the making of context-parallel plans on a CPU: milliseconds, the sharding that is chosen, and its
estimated cost.

    python -m benchmarks.cp.plan_costs [--ranks 96] [--tokens 8K] [--documents 1000] [--write
    docs/results/h200/context-parallelism.md]

64:8 heads, head dim 128, bf16. Plans are made on the host, by one core; the masks of a rank's steps are timed
apart, since each rank only needs its own.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from benchmarks.common.text import milliseconds
from longca.core import Registry, format_length, parse_length
from longca.cp.partition import make_sharding
from longca.cp.schedule import Gather, Ring
from longca.cp.schedule.plan import Plan
from longca.cp.schedule.planner import Planner, UnitCosts
from longca.masks import Mask, build_mask
from tools.table import Table, add_options

SCHEDULES = {"gather": Gather(), "ring": Ring(), "ring, two-way": Ring(two_way=True)}
COLUMNS = (
    "mask",
    "bands",
    "schedule",
    "sharding",
    "plan ms",
    "slowest ms",
    "masks ms",
    "max / mean area",
    "received",
    "estimate ms",
)
ROUNDS = 5
Result = TypeVar("Result")


def best_ms(call: Callable[[], Result], rounds: int = ROUNDS) -> tuple[float, Result]:
    """Returns (milliseconds of the fastest round, result)."""
    times = []
    result = call()
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times) * 1e3, result


def masks_of(plan: Plan, rank: int) -> list[Mask]:
    return [step.mask for step in plan.steps(rank)]


def measured(mask: Mask, world: int, schedule: str) -> dict[str, float | str]:
    choices = Planner(UnitCosts.of(64, 8, 128)).choices(mask, world, SCHEDULES[schedule])
    plan_ms = {
        name: best_ms(lambda name=name: SCHEDULES[schedule].plan(mask, make_sharding(name, mask, world)))[0]
        for name in (choice.plan.sharding.name for choice in choices)
    }
    chosen = choices[0]
    plan = chosen.plan
    name = chosen.plan.sharding.name
    areas = plan.step_areas.sum(axis=1)
    remote = mask.seqlen_k - plan.sharding.num_tokens
    return {
        "mask": mask.name,
        "bands": len(mask.bands),
        "schedule": schedule,
        "permutation": name,
        "plan_ms": plan_ms[name],
        "slowest_ms": max(plan_ms.values()),
        "masks_ms": best_ms(lambda: masks_of(plan, world // 2), 2)[0],
        "imbalance": float(areas.max() / areas.mean()),
        "received": float((plan.received_kv.sum(axis=1) / np.maximum(remote, 1)).max()),
        "estimate_ms": chosen.cost.total_s * 1e3,
    }


def documents(number: int, seqlen: int) -> np.ndarray:
    """Returns the lengths of so many documents, cut at random places."""
    inner = np.random.default_rng(0).choice(np.arange(1, seqlen), number - 1, replace=False)
    return np.diff(np.concatenate([[0], np.sort(inner), [seqlen]]))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cp.plan_costs", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("--ranks", type=int, default=96)
    parser.add_argument("--tokens", type=parse_length, default=8192, help="of each rank (8K)")
    parser.add_argument("--documents", type=int, default=1000, help="of masks with documents (1000)")
    add_options(parser)
    options = parser.parse_args(arguments)
    seqlen = options.ranks * options.tokens
    records = []
    for name in Registry("mask").names():
        pattern = Registry("mask").load(name)
        if pattern.family == "dynamic" or not pattern.number:  # the table has the study's static masks
            continue
        cut = (
            pattern.uses_documents and name != "block_causal_document"
        )  # whose documents are whole blocks: it has those of a corpus
        mask = build_mask(
            name, seqlen=seqlen, documents=documents(options.documents, seqlen) if cut else None
        )
        records += [measured(mask, options.ranks, schedule) for schedule in SCHEDULES]
        print(name, *(line["permutation"] for line in records[-len(SCHEDULES) :]), flush=True)
    rows = [
        (
            str(line["mask"]),
            str(line["bands"]),
            str(line["schedule"]),
            str(line["permutation"]),
            *(milliseconds(float(line[key])) for key in ("plan_ms", "slowest_ms", "masks_ms")),
            f"{line['imbalance']:.2f}",
            f"{100 * float(line['received']):.1f} %",
            milliseconds(float(line["estimate_ms"])),
        )
        for line in records
    ]
    caption = (
        f"{options.ranks} ranks × {format_length(options.tokens)} tokens, {options.documents} documents; "
        f"one core of a {platform.machine()} host, best of {ROUNDS}."
    )
    Table("cp_plan", caption, COLUMNS, tuple(rows), tuple(records), ("mask", "schedule", "sharding")).publish(
        options
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
