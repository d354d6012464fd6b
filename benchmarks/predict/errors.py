"""Tells how good predictions are: errors on records that were held out, coverage of intervals, and the cost
of choices.

    python -m benchmarks.predict.errors reports/h200/h200-*.parquet \\
        reports/h200/rested/*_without_rests.parquet --write docs/results/h200/prediction.md

No GPU is needed; it takes some minutes of one core, most of them for fits without one mask each.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.predict.error_tables import EMPTY, kernels, masks, percent, short, strategies, worlds
from benchmarks.predict.held_out import (
    REPEATS_WITHIN,
    Choice,
    Residual,
    by_group,
    by_mask,
    choices,
    of_usual_protocol,
    repeated,
    settings_of,
)
from benchmarks.predict.links import fitted_of
from longca.core import format_length
from longca.lab.advice.recorded import OWN, PAPER, measured_cells
from longca.lab.store.load import load
from longca.lab.studies.fitting import CallsToFit
from longca.predict import Interval
from tools.pages import write_blocks
from tools.table import Table, add_options

# wanted: the median error, that of 95 % of cells, and the coverage of intervals
MEDIAN = 0.04
MOST = 0.12
COVERAGE = 0.9
# wanted of choices
RIGHT = 0.9
REGRET = 0.01
MOST_REGRET = 0.05


def splits(residuals: Sequence[Residual], groups: Mapping[str, Mapping[str, np.ndarray]]) -> Table:
    """Errors and coverage by the way of holding out, against what is wanted."""
    own = [residual for residual in residuals if residual.cell.record.cell.strategy in OWN]
    ways = {
        "by mask, kernels fitted without it": residuals,
        "by mask, own strategies": own,
        **{
            f"by mask, own strategies, {world} GPUs": [
                entry for entry in own if entry.cell.record.cell.world == world
            ]
            for world in worlds(entry.cell for entry in own)[:-1]
        },
    }
    errors_of = {way: np.array([entry.error for entry in here]) for way, here in ways.items()} | {
        f"by {way}, messages fitted without {name}": values
        for way, parts in groups.items()
        for name, values in parts.items()
    }
    rows = []
    entries = []
    for way, errors in errors_of.items():
        size = np.abs(errors)
        median = float(np.median(size))
        most = float(np.quantile(size, 0.95))
        inside = float((size <= MOST).mean())
        met = "met" if median <= MEDIAN and inside >= 0.95 else "missed"
        entries.append(
            {
                "held_out": way,
                "cells": len(errors),
                "median": median,
                "p95": most,
                "within": inside,
                "verdict": met,
            }
        )
        rows.append((way, str(len(errors)), percent(median), percent(most), percent(inside), met))
    caption = f"Wanted: a median of at most {percent(MEDIAN)}, and 95 % of cells within {percent(MOST)}."
    columns = ("held out", "cells", "median", "95 % below", "within 12 %", "verdict")
    return Table("predict_splits", caption, columns, tuple(rows), tuple(entries), (columns[0], columns[-1]))


def coverage(residuals: Sequence[Residual]) -> Table:
    """The share of cells that lie in the intervals fitted on other cells."""
    ways = {
        "ranks": lambda entry: entry.cell.record.cell.world,
        "mask": lambda entry: entry.cell.record.cell.mask,
        "direction": lambda entry: entry.cell.record.cell.direction,
    }
    rows = []
    entries = []
    for way, group in ways.items():
        inside = total = 0
        for strategy in (*OWN, *PAPER):
            here = [residual for residual in residuals if residual.cell.record.cell.strategy == strategy]
            for name in sorted({group(entry) for entry in here}, key=str):
                rest = [entry.error for entry in here if group(entry) != name]
                if len(rest) < 10:
                    continue
                interval = Interval.of(rest)
                of_group = [
                    interval.low <= entry.error <= interval.high for entry in here if group(entry) == name
                ]
                inside = inside + sum(of_group)
                total = total + len(of_group)
        if not total:
            continue  # a single group has no others
        share = inside / total
        met = "met" if abs(share - COVERAGE) <= 0.05 else "missed"
        entries.append({"intervals_without": way, "cells": total, "coverage": share, "verdict": met})
        rows.append((f"intervals of the same strategy, without the {way}", str(total), percent(share), met))
    columns = ("intervals", "cells", "inside", "verdict")
    caption = "Intervals are to hold 90 % of the cells, give or take 5."
    return Table("predict_coverage", caption, columns, tuple(rows), tuple(entries), (columns[0], columns[-1]))


def choice_table(choices: Sequence[Choice], repeats: np.ndarray) -> Table:
    """The share of cases in which each rule takes the best strategy, and its loss in the others."""
    rows = []
    lines = []
    for rule in dict.fromkeys(choice.rule for choice in choices):
        of_rule = {"all": choices}
        if len(ranks := sorted({int(str(choice.setting[0])) for choice in choices})) > 1:
            of_rule |= {
                f"{world} GPUs": [choice for choice in choices if choice.setting[0] == world]
                for world in ranks
            }
        for name, here in of_rule.items():
            regrets = np.array([entry.regret for entry in here if entry.rule == rule])
            right = np.array([entry.is_right for entry in here if entry.rule == rule])
            if not len(regrets):
                continue
            met = right.mean() >= RIGHT and regrets.mean() <= REGRET and regrets.max() <= MOST_REGRET
            lines.append(
                {
                    "rule": rule,
                    "settings": name,
                    "count": len(regrets),
                    "right": float(right.mean()),
                    "mean_regret": float(regrets.mean()),
                    "most_regret": float(regrets.max()),
                }
            )
            rows.append(
                (
                    rule,
                    name,
                    str(len(regrets)),
                    percent(right.mean()),
                    percent(regrets.mean()),
                    percent(regrets.max()),
                    ("met" if met else "missed") if rule == "predicted" else EMPTY,
                )
            )
    caption = (
        "Choices among own strategies in settings where three or more were measured: how often a rule takes "
        "the best or one within the noise of it (the middle half of samples; at least the "
        f"{percent(float(np.quantile(repeats, REPEATS_WITHIN)))} below which {percent(REPEATS_WITHIN)} of "
        f"{len(repeats)} pairs of records of one plan differ), and how much longer its choice takes. "
        "Strategies with one plan took the least that was measured of it. Wanted: 90 %, 1 % in the mean, 5 "
        "% at most."
    )
    columns = ("rule", "settings", "number", "right", "regret, mean", "most", "verdict")
    return Table("predict_choices", caption, columns, tuple(rows), tuple(lines), (*columns[:2], columns[-1]))


def wrong(choices: Sequence[Choice]) -> Table:
    """The settings in which the predicted best costs more than is wanted."""
    here = sorted(
        (choice for choice in choices if choice.rule == "predicted" and not choice.is_right),
        key=lambda entry: -entry.regret,
    )
    lines = []
    rows = []
    for entry in here:
        world, seqlen, mask, _, kernel, direction, _ = entry.setting
        where = f"{world} × {format_length(int(str(seqlen)) // int(str(world)))}"
        lines.append(
            {
                "setting": where,
                "mask": mask,
                "kernel": kernel,
                "direction": direction,
                "taken": entry.taken,
                "best": entry.best,
                "regret": entry.regret,
            }
        )
        rows.append(
            (where, str(mask), str(kernel), str(direction), entry.taken, entry.best, percent(entry.regret))
        )
    columns = ("GPUs × tokens", "mask", "kernel", "", "predicted best", "measured best", "regret")
    return Table(
        "predict_wrong",
        "The predicted best where it is beyond the noise of the measured best.",
        columns,
        tuple(rows),
        tuple(lines),
        columns[:6],
    )


def conclusion(
    where: str,
    ways: Sequence[Mapping[str, Any]],
    intervals: Sequence[Mapping[str, Any]],
    rules: Sequence[Mapping[str, Any]],
) -> str:
    """The conclusion of all tables, with each missed target and by how much.

    Args:
        where: GPUs of the cells.
        ways, intervals, rules: the unrounded lines of `splits`, `coverage` and `choice_table`.
    """
    first = ways[0]
    ours = next(rule for rule in rules if rule["rule"] == "predicted")
    others = [rule for rule in rules if rule["rule"] != "predicted" and rule["settings"] == ours["settings"]]
    best = min(others, key=lambda entry: float(entry["mean_regret"]))
    inside = [float(interval["coverage"]) for interval in intervals]
    missed = [
        f"{way['held_out']}: median {percent(float(way['median']))}, {percent(float(way['within']))} within "
        f"{percent(MOST)}"
        for way in ways
        if way["verdict"] == "missed"
    ]
    missed += [
        f"{interval['intervals_without']} held out: intervals hold {percent(float(interval['coverage']))}"
        for interval in intervals
        if interval["verdict"] == "missed"
    ]
    wanted = (
        (
            float(ours["right"]) >= RIGHT,
            f"choices are right in {percent(float(ours['right']))}, wanted {percent(RIGHT)}",
        ),
        (
            float(ours["mean_regret"]) <= REGRET,
            f"mean regret {percent(float(ours['mean_regret']))}, wanted {percent(REGRET)}",
        ),
        (
            float(ours["most_regret"]) <= MOST_REGRET,
            f"largest regret {percent(float(ours['most_regret']))}, wanted {percent(MOST_REGRET)}",
        ),
    )
    missed += [text for met, text in wanted if not met]
    return (
        f"**{first['cells']} cells on {where} whose mask was held out are predicted with a median error of "
        f"{percent(float(first['median']))}; {percent(float(first['within']))} lie within {percent(MOST)}. "
        f"Intervals hold {percent(min(inside))} to {percent(max(inside))} of cells that were held out, "
        f"wanted {percent(COVERAGE)}. The predicted best strategy is the best or within noise of it in "
        f"{percent(float(ours['right']))} of {ours['count']} settings and costs "
        f"{percent(float(ours['mean_regret']))} in the mean, {percent(float(ours['most_regret']))} at most; "
        f"{best['rule']} costs {percent(float(best['mean_regret']))} and "
        f"{percent(float(best['most_regret']))}.**\n\n"
        + (f"Missed: {'; '.join(missed)}." if missed else "Nothing that was wanted is missed.")
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.predict.errors", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("records", type=Path, nargs="+", help="of studies: of several GPUs, and of one")
    add_options(parser)
    options = parser.parse_args(arguments)
    records = load(*options.records).records
    cells = measured_cells(records)
    calls = CallsToFit(records)
    residuals = by_mask(cells, calls)
    own = [cell for cell in of_usual_protocol(cells, calls) if cell.work is not None][::2]
    groups = by_group(
        own,
        {
            "ranks": lambda cell: f"{cell.record.cell.world} ranks",
            "strategy": lambda cell: str(cell.record.cell.strategy),
        },
    )
    first = splits(residuals, groups)
    intervals = coverage(residuals)
    rules = choice_table(choices(residuals), repeated(settings_of(residuals)))
    fitted = fitted_of(cells)
    for table in (
        first,
        strategies(residuals),
        masks(residuals),
        intervals,
        rules,
        wrong(choices(residuals)),
        kernels(fitted),
    ):
        table.publish(options)
    text = conclusion(
        f"{' and '.join(map(str, worlds(cells)))} {short(fitted.device)}s",
        first.records,
        intervals.records,
        rules.records,
    )
    print(text)
    for page in options.write:
        write_blocks(page, predict_conclusion=text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
