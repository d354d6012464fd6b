"""Estimates what each sharding would cost a ring and a gather, without a GPU.

    python -m benchmarks.cp.shardings reports/h200 [--ranks 4] [--tokens 8K] [--masks causal_document]
                                      [--write docs/results/h200/context-parallelism.md]

Kernels forward, 64:8 heads, head dim 128, by the costs that `benchmarks.band.step_costs` finds in the CSV of
`benchmarks.band.compare`: each work tile goes to the multiprocessor that is free first, one head after
another (the kernel runs several heads at once), and each call has its own cost. Waits of ranks for each other
or for messages are not in it. Messages and the choice are those of `longca.cp.schedule.planner`.
"""

import argparse
import heapq
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.band.step_costs import COSTS, PROCESSORS, counts_of, fit_records, steps_of, timed
from benchmarks.band.tables import OURS
from benchmarks.common.text import milliseconds, names
from benchmarks.cp.plan_costs import SCHEDULES
from longca.core import Registry, format_length, parse_length
from longca.cp.schedule.plan import Plan
from longca.cp.schedule.planner import Planner, UnitCosts, step_masks
from longca.masks import Mask, build_mask
from tools.table import Table, add_options

# tokens of the masks that costs are found from: calls as short as those of ranks
HEADS = (64, 8)
COSTS_FROM = 8192
COLUMNS = (
    "mask",
    "schedule",
    "sharding",
    "max / mean area",
    "kernels, ms",
    "most, ms",
    "baseline / ranks",
    "keys, ms",
    "estimate, ms",
)


def costs_of(folder: Path) -> np.ndarray:
    """Returns milliseconds of (a full block, a partial block, a call), (3,).

    Raises:
        ValueError: too few masks were measured.
    """
    wanted = OURS, "fwd", COSTS_FROM
    values = [
        record for record in timed(folder) if (record.kernel, record.direction, record.seqlen) == wanted
    ]
    if len(values) <= len(COSTS):
        raise ValueError(
            f"{len(values)} masks timed forward at {format_length(COSTS_FROM)} in {folder}; more than "
            f"{len(COSTS)} are needed"
        )
    return fit_records(values, counts_of(values))[0]


def kernel_ms(mask: Mask, costs: np.ndarray) -> float:
    """Estimates one call, whose work tiles run on one multiprocessor each."""
    steps, heads = steps_of(mask, *HEADS, "fwd")
    free = [0.0] * PROCESSORS
    for takes in np.tile(steps @ costs[:2], heads).tolist():
        heapq.heappush(free, heapq.heappop(free) + takes)
    return max(free) + costs[2]


def rank_ms(plan: Plan, costs: np.ndarray) -> list[float]:
    """Estimates all kernel calls of each rank."""
    return [
        sum(kernel_ms(mask, costs) for _, _, mask in step_masks(plan, rank, merging=True).values())
        for rank in range(plan.world)
    ]


def lines_of(
    mask: Mask, world: int, schedule: str, costs: np.ndarray, most: int
) -> list[dict[str, float | str]]:
    """Returns a line for each sharding; the one that is chosen comes first."""
    alone = kernel_ms(mask, costs)
    lines = []
    for choice in Planner(UnitCosts.of(*HEADS, 128)).choices(mask, world, SCHEDULES[schedule])[:most]:
        plan = choice.plan
        ranks = rank_ms(choice.plan, costs)
        areas = choice.plan.step_areas.sum(axis=1)
        lines.append(
            {
                "mask": mask.name,
                "schedule": schedule,
                "placement": plan.sharding.name,
                "imbalance": float(areas.max() / areas.mean()),
                "mean_ms": float(np.mean(ranks)),
                "most_ms": max(ranks),
                "share": alone / world / max(ranks),
                "move_ms": choice.cost.transfer_s * 1e3,
                "estimate_ms": choice.cost.total_s * 1e3,
            }
        )
    return lines


def main(arguments: Sequence[str]) -> int:
    known = [name for name in Registry("mask").names() if Registry("mask").load(name).family != "dynamic"]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cp.shardings", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument(
        "records", type=Path, help="folder of the band.csv that `benchmarks.band.compare` wrote"
    )
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--tokens", type=parse_length, default=8192, help="of each rank (8K)")
    parser.add_argument(
        "--masks", type=lambda text: names(text, known), default=["causal_document"], help=", ".join(known)
    )
    parser.add_argument("--most", type=int, default=4, help="shardings of a schedule, the cheapest first (4)")
    add_options(parser)
    options = parser.parse_args(arguments)
    try:
        costs = costs_of(options.records)
    except ValueError as error:
        parser.error(str(error))
    records = []
    for name in options.masks:
        mask = build_mask(name, seqlen=options.ranks * options.tokens, corpus="prolong64k")
        records += [
            line
            for schedule in SCHEDULES
            for line in lines_of(mask, options.ranks, schedule, costs, options.most)
        ]
    rows = [
        (
            str(line["mask"]),
            str(line["schedule"]),
            str(line["placement"]),
            f"{line['imbalance']:.2f}",
            *(milliseconds(float(line[key])) for key in ("mean_ms", "most_ms")),
            f"{100 * float(line['share']):.0f} %",
            *(milliseconds(float(line[key])) for key in ("move_ms", "estimate_ms")),
        )
        for line in records
    ]
    caption = (
        f"{options.ranks} ranks × {format_length(options.tokens)} tokens, forward, estimated from costs of "
        "blocks and calls: nothing was measured. Kernels: the mean of ranks, and the rank with most."
    )
    Table("cp_shardings", caption, COLUMNS, tuple(rows), tuple(records), COLUMNS[:3]).publish(options)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
