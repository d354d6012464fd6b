"""Fits the costs of band attention's backward ways to measured times, and tells what a choice by predicted
times loses.

    python -m benchmarks.band.way_costs [reports/h200/ways/64-8 …] [--write docs/results/h200/band.md]

Reads the CSVs of `benchmarks.band.dq_order --also …`, as `benchmarks.renew ways-64-8` makes them; no GPU is
needed. Loss is the time of the chosen way over that of the quickest measured one, minus 1. The costs that it
prints belong into `longca/ops/band/tables/backward_time.py`.

Columns that are one way in fact, such as two and four KV heads at once of two, are averaged. A median that
lies some milliseconds above those of the same mask is of calls that something else held up, and is left out.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.band.dq_order import RANKS, TIMES, Case, cases
from benchmarks.common.text import percent
from longca.ops.band import AddOrder
from longca.ops.band.tables.backward_rule import preferred_dq_order
from longca.ops.band.tables.backward_time import (
    ONE_PASS,
    ONE_PASS_US,
    TWO_KERNELS,
    TWO_KERNELS_US,
    one_pass_amounts,
    two_kernels_amounts,
)
from longca.ops.band.tables.backward_way import BackwardWay, chosen_way, has_predicted_times, ways_of_one_pass
from longca.ops.band.tables.heads import heads_at_once, heads_per_item_of
from longca.ops.band.tables.tile_rows import TILE, TileRows
from longca.predict.fit import non_negative
from tools.pages import ROOT
from tools.table import Table, add_options, read_records

ALL_HEADS = ("64-8", "32-8", "16-2", "64-64")
FOLDERS = (
    *(f"reports/h200/ways/{heads}{part}" for part in ("", "-middle") for heads in ALL_HEADS),
    "reports/h200/ways/64-8-long",
    *(f"reports/h200/ways/{heads}-many-at-once" for heads in ALL_HEADS),
    "reports/h200/ways/64-8-long-many-at-once",
)
# of `dq_order --ranks`, which no cost is fitted to
PARTS = ("reports/h200/ways/parts", "reports/h200/ways/parts-many-at-once")
TWO = BackwardWay(None)
COLUMNS = ("choice", "masks", "slower than the best, mean", "most", "by more than 3 %")
MUCH = 0.03
# of a call that was held up, beside the quickest way of the mask
HELD_UP_US = (1000, 9000)
HELD_UP_RATIO = 2.5
# Longer calls are not fitted: a loss under them is one of lengths beyond those of the fit.
LONGEST_FITTED = 24576
# samples for a fit: up to this ratio to the quickest way, since others are never chosen
NEAR = 1.3
# relative residuals from which on samples count less
LARGE_RESIDUAL = 0.03
ROUNDS = 6
WORST = 8  # masks that are printed

Costs = tuple[np.ndarray, np.ndarray]  # of ONE_PASS, of TWO_KERNELS
COMMITTED = np.array(ONE_PASS_US), np.array(TWO_KERNELS_US)


@dataclass(frozen=True)
class Sample:
    """One mask with some heads: measured and predicted ways."""

    mask: str
    seqlen: int
    heads: str
    by_rule: BackwardWay
    """of the rule by sizes"""
    by_plan: BackwardWay
    """which a plan takes"""
    measured_us: dict[BackwardWay, float]
    amounts: dict[BackwardWay, np.ndarray]
    """of those ways from which the plan chooses"""
    repeated: list[float]
    """relative distance of columns that are one way"""

    def loss(self, way: BackwardWay) -> float:
        return self.measured_us[way] / min(self.measured_us.values()) - 1

    def predicted(self, costs: Costs) -> BackwardWay:
        """The way that a plan takes by these costs."""
        if self.by_plan.order is AddOrder.FROM_LAST:  # which has no predicted time
            return self.by_plan
        return min(self.amounts, key=lambda way: float(self.amounts[way] @ costs[way == TWO]))


def sample_of(case: Case, record: dict[str, str]) -> Sample | None:
    """The sample of a record; None if the ways of the rule, or two kernels, have no time."""
    measured: dict[BackwardWay, list[float]] = {}
    for column, way in ways_of_columns(case).items():
        if record.get(column):
            measured.setdefault(way, []).append(case.flops / float(record[column]) / 1e6)
    least = min(min(times) for times in measured.values())
    kept = {
        way: [time for time in times if not _is_held_up(time, least, way, times)]
        for way, times in measured.items()
    }
    mean_us = {way: statistics.mean(times) for way, times in kept.items() if times}
    order = preferred_dq_order(case.mask, case.num_kv_heads)
    by_rule = TWO if order is None else _by_form(case, order)
    chosen = chosen_way(case.mask, case.num_q_heads, case.num_kv_heads)
    if chosen.order is not None and not chosen.kv_heads_at_once:
        chosen = _by_form(case, chosen.order)
    if by_rule not in mean_us or TWO not in mean_us:
        return None
    return Sample(
        case.mask.name,
        case.mask.seqlen_q,
        f"{case.num_q_heads}:{case.num_kv_heads}",
        by_rule,
        chosen,
        mean_us,
        {way: amounts for way, amounts in _amounts(case).items() if way in mean_us},
        [max(times) / min(times) - 1 for times in kept.values() if len(times) > 1],
    )


def _is_held_up(time: float, least: float, way: BackwardWay, times: list[float]) -> bool:
    """True if something else held the calls up. From the last row, times may really be that long."""
    if not HELD_UP_US[0] < time - least < HELD_UP_US[1] or time < HELD_UP_RATIO * least:
        return False
    return time > HELD_UP_RATIO * min(times) or (len(times) == 1 and way.order is not AddOrder.FROM_LAST)


def ways_of_columns(case: Case) -> dict[str, BackwardWay]:
    """The deterministic way of each column of the CSV, with what the plan makes of its numbers."""
    columns = {
        "two kernels": TWO,
        "from the last row": _by_form(case, AddOrder.FROM_LAST),
        "from the first row": _by_form(case, AddOrder.FROM_FIRST),
    }
    for name, order in (("bwd from last", AddOrder.FROM_LAST), ("bwd from first s1", AddOrder.FROM_FIRST)):
        for heads in (1, 2, 4, 8, 16):
            columns[f"{name} k{heads}"] = _by_form(case, order, heads)
            for rounds in (1, 2, 4, 8):
                columns[f"{name} k{heads} r{rounds}"] = _by_form(case, order, heads, rounds)
    return columns


def _by_form(case: Case, order: AddOrder, heads: int = 0, rounds: int = 0) -> BackwardWay:
    """One pass with so many heads at once; 0: as the plan chooses by the mask's form."""
    heads_per_item = _heads_per_item(case, order)
    head_rounds = case.num_q_heads // case.num_kv_heads // heads_per_item
    usual = heads_at_once(case.mask, order, case.num_kv_heads, head_rounds, heads_per_item, TILE)
    return BackwardWay(
        order, math.gcd(heads or usual[0], case.num_kv_heads), math.gcd(rounds or usual[1], head_rounds)
    )


def _heads_per_item(case: Case, order: AddOrder) -> int:
    heads = heads_per_item_of(case.mask, order, case.num_q_heads, TILE)
    return math.gcd(heads, case.num_q_heads // case.num_kv_heads)


def _amounts(case: Case) -> dict[BackwardWay, np.ndarray]:
    (bands,) = case.mask.groups
    tiles = TileRows.of(bands, case.mask.seqlen_q, case.mask.seqlen_k)
    heads = case.num_q_heads, case.num_kv_heads
    heads_per_item = _heads_per_item(case, AddOrder.FROM_FIRST)
    return {TWO: two_kernels_amounts(bands, tiles, *heads)} | {
        BackwardWay(AddOrder.FROM_FIRST, *at_once): one_pass_amounts(tiles, *heads, heads_per_item, at_once)
        for at_once in ways_of_one_pass(case.mask.seqlen_q, *heads, heads_per_item)
    }


def fit(samples: Sequence[Sample]) -> Costs:
    """The costs of both kinds of ways, of samples of up to LONGEST_FITTED tokens: non-negative least squares
    of relative residuals, large ones of which count less."""
    costs = []
    for two in (False, True):
        rows = [
            sample.amounts[way] / time
            for sample in samples
            if sample.seqlen <= LONGEST_FITTED
            for way, time in sample.measured_us.items()
            if way in sample.amounts and (way == TWO) is two
            if time < NEAR * min(sample.measured_us.values())
        ]
        matrix = np.array(rows)
        x = weights = np.ones(len(rows))
        for _ in range(ROUNDS):
            x, _ = non_negative(matrix * weights[:, None], weights)
            residuals = np.abs(matrix @ x - 1)
            weights = np.sqrt(np.minimum(1, LARGE_RESIDUAL / np.maximum(residuals, 1e-9)))
        costs.append(x)
    return costs[0], costs[1]


def held_out(samples: Sequence[Sample], group: Callable[[Sample], Hashable]) -> list[float]:
    """The loss of each sample, chosen by costs fitted to the other groups."""
    losses = []
    for name in dict.fromkeys(map(group, samples)):
        costs = fit([sample for sample in samples if group(sample) != name])
        losses += [sample.loss(sample.predicted(costs)) for sample in samples if group(sample) == name]
    return losses


def losses_of(samples: Sequence[Sample], parts: Sequence[Sample] = ()) -> dict[str, list[float]]:
    """The losses of several choices, by their names; what all samples share is not held out.

    Args:
        parts: samples of ranks' parts of masks, to which no cost is fitted.
    """
    groups: dict[str, Callable[[Sample], Hashable]] = {
        "held out: its length": lambda sample: sample.seqlen,
        "held out: its mask": lambda sample: sample.mask,
        "held out: its heads": lambda sample: sample.heads,
    }
    return {
        "by sizes": [sample.loss(sample.by_rule) for sample in samples],
        "by predicted times, as a plan does": [
            sample.loss(sample.by_plan) for sample in samples if sample.by_plan in sample.measured_us
        ],
        **{
            name: held_out(samples, group)
            for name, group in groups.items()
            if len(set(map(group, samples))) > 1
        },
        "the best of those predicted": [min(map(sample.loss, sample.amounts)) for sample in samples],
        **(
            {
                "ranks' parts, held out: by sizes": [part.loss(part.by_rule) for part in parts],
                "ranks' parts, held out: as chosen": [part.loss(part.by_plan) for part in parts],
            }
            if parts
            else {}
        ),
    }


def table(samples: Sequence[Sample], parts: Sequence[Sample] = ()) -> Table:
    repeated = [distance for sample in samples for distance in sample.repeated]
    middle, most = np.quantile(repeated, [0.5, 0.95]) if repeated else (math.nan, math.nan)
    records = [
        {
            "choice": name,
            "masks": len(losses),
            "lost_mean": statistics.mean(losses),
            "lost_most": max(losses),
            "much": sum(loss > MUCH for loss in losses),
        }
        for name, losses in losses_of(samples, parts).items()
    ]
    rows = [
        (
            record["choice"],
            str(record["masks"]),
            f"{100 * record['lost_mean']:.2f} %",
            percent(record["lost_most"], signed=False),
            str(record["much"]),
        )
        for record in records
    ]
    heads = ", ".join(dict.fromkeys(sample.heads for sample in samples))
    lengths = [sample.seqlen for sample in samples]
    caption = (
        f"All gradients, {heads} heads, {min(lengths)} to {max(lengths)} tokens. One way measured twice "
        f"differs by {percent(middle, signed=False)} in the median, and by {percent(most, signed=False)} "
        "in one of twenty cases."
    )
    return Table("band_way_costs", caption, COLUMNS, tuple(rows), tuple(records), COLUMNS[:1])


def read(folders: Sequence[Path]) -> list[Sample]:
    """The samples of these folders' CSVs, of whole masks with predicted times.

    Raises:
        ValueError: there are none.
    """
    samples = []
    for folder in folders:
        records = read_records(folder, TIMES)
        heads = {
            (int(record["heads"]), int(record["kv_heads"])) for record in records if "kv_heads" in record
        }
        lengths = sorted({int(record["seqlen_q"]) for record in records})
        samples += _samples(records, cases(sorted(heads), lengths) if heads else ())
    if not samples:
        raise ValueError(
            f"no {TIMES}.csv with ways and KV heads in {', '.join(map(str, folders))}: `python -m "
            "benchmarks.renew ways-64-8` makes one on a Hopper GPU"
        )
    return samples


def read_parts(folders: Sequence[Path]) -> list[Sample]:
    """The samples of ranks' parts of masks, of those with predicted times. The other ones go by sizes."""
    measured = cases(ranks=RANKS)
    samples = [sample for folder in folders for sample in _samples(read_records(folder, TIMES), measured)]
    return [sample for sample in samples if sample.by_plan in sample.measured_us]


def _samples(records: Sequence[dict[str, str]], measured: Sequence[Case]) -> list[Sample]:
    known = {case.key: case for case in measured}
    samples = (
        sample_of(case, record)
        for record in records
        if (case := known.get((record["digest"], int(record["heads"])))) is not None
        and has_predicted_times(case.mask, case.num_kv_heads)
    )
    return [sample for sample in samples if sample is not None]


def _text(way: BackwardWay) -> str:
    if way.order is None:
        return "two kernels"
    return f"one pass, k{way.kv_heads_at_once} r{way.rounds_at_once}"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.band.way_costs", description=str(__doc__).partition("\n\n")[0]
    )
    parser.add_argument("folders", nargs="*", type=Path, help=f"of {TIMES}.csv: {', '.join(FOLDERS)}")
    add_options(parser)
    options = parser.parse_args(arguments)
    try:
        samples = read(options.folders or [ROOT / folder for folder in FOLDERS])
    except ValueError as error:
        parser.error(str(error))
    for name, features, costs in zip(
        ("ONE_PASS_US", "TWO_KERNELS_US"), (ONE_PASS, TWO_KERNELS), fit(samples), strict=True
    ):
        print(f"{name} = ({', '.join(f'{cost:.4g}' for cost in costs)})  # {', '.join(features)}")
    worst = sorted(samples, key=lambda sample: -sample.loss(sample.predicted(COMMITTED)))[:WORST]
    for sample in worst:
        way = sample.predicted(COMMITTED)
        print(f"{sample.mask} {sample.seqlen} {sample.heads}: {percent(sample.loss(way))} by {_text(way)}")
    parts = [] if options.folders else read_parts([ROOT / folder for folder in PARTS])
    table(samples, parts).publish(options)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
