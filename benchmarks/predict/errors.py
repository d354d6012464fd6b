"""Tells how good predictions are: errors on records that were held out, coverage of intervals, and the cost
of choices.

    python -m benchmarks.predict.errors reports/h200/h200-cp.parquet reports/h200/h200-dense.parquet
    reports/h200/h200-sparse.parquet
                                        --write docs/results/h200/prediction.md

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
    repeated,
    settings_of,
)
from benchmarks.predict.links import fitted_of
from longca.core.units import format_length
from longca.lab.advice.recorded import OWN, PAPER, measured_cells
from longca.lab.store.load import load
from longca.predict.kernel import Interval
from tools.pages import put
from tools.table import Table, add_options

# wanted: the median error, that of 95 % of cells, and the coverage of intervals
MEDIAN, MOST, COVERAGE = 0.04, 0.12, 0.9
RIGHT, REGRET, MOST_REGRET = 0.9, 0.01, 0.05  # wanted of choices


def splits(residuals: Sequence[Residual], groups: Mapping[str, Mapping[str, np.ndarray]]) -> Table:
    """Errors and coverage by the way of holding out, against what is wanted."""
    own = [one for one in residuals if one.cell.record.cell.strategy in OWN]
    ways = {
        "by mask, kernels fitted without it": residuals,
        "by mask, own strategies": own,
        **{
            f"by mask, own strategies, {world} GPUs": [
                one for one in own if one.cell.record.cell.world == world
            ]
            for world in worlds(one.cell for one in own)[:-1]
        },
    }
    errors_of = {way: np.array([one.error for one in here]) for way, here in ways.items()} | {
        f"by {way}, messages fitted without {name}": values
        for way, parts in groups.items()
        for name, values in parts.items()
    }
    rows, found = [], []
    for way, errors in errors_of.items():
        size = np.abs(errors)
        median, most, inside = (
            float(np.median(size)),
            float(np.quantile(size, 0.95)),
            float((size <= MOST).mean()),
        )
        met = "met" if median <= MEDIAN and inside >= 0.95 else "missed"
        found.append(
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
    return Table("predict_splits", caption, columns, tuple(rows), tuple(found), (columns[0], columns[-1]))


def coverage(residuals: Sequence[Residual]) -> Table:
    """The share of cells that lie in the intervals fitted on other cells."""
    ways = {
        "ranks": lambda one: one.cell.record.cell.world,
        "mask": lambda one: one.cell.record.cell.mask,
        "direction": lambda one: one.cell.record.cell.direction,
    }
    rows, found = [], []
    for way, group in ways.items():
        inside = total = 0
        for strategy in (*OWN, *PAPER):
            here = [one for one in residuals if one.cell.record.cell.strategy == strategy]
            for name in sorted({group(one) for one in here}, key=str):
                rest = [one.error for one in here if group(one) != name]
                if len(rest) < 10:
                    continue
                interval = Interval.of(rest)
                of_group = [interval.low <= one.error <= interval.high for one in here if group(one) == name]
                inside, total = inside + sum(of_group), total + len(of_group)
        if not total:
            continue  # a single group has no others
        share = inside / total
        met = "met" if abs(share - COVERAGE) <= 0.05 else "missed"
        found.append({"intervals_without": way, "cells": total, "coverage": share, "verdict": met})
        rows.append((f"intervals of the same strategy, without the {way}", str(total), percent(share), met))
    columns = ("intervals", "cells", "inside", "verdict")
    caption = "Intervals are to hold 90 % of the cells, give or take 5."
    return Table("predict_coverage", caption, columns, tuple(rows), tuple(found), (columns[0], columns[-1]))


def choice_table(found: Sequence[Choice], repeats: np.ndarray) -> Table:
    """The share of cases in which each rule takes the best strategy, and its loss in the others."""
    rows, lines = [], []
    for rule in dict.fromkeys(one.rule for one in found):
        of_rule = {"all": found}
        if len(ranks := sorted({int(str(one.setting[0])) for one in found})) > 1:
            of_rule |= {f"{world} GPUs": [one for one in found if one.setting[0] == world] for world in ranks}
        for name, here in of_rule.items():
            regrets = np.array([one.regret for one in here if one.rule == rule])
            right = np.array([one.is_right for one in here if one.rule == rule])
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


def wrong(found: Sequence[Choice]) -> Table:
    """The settings in which the predicted best costs more than is wanted."""
    here = sorted(
        (one for one in found if one.rule == "predicted" and not one.is_right), key=lambda one: -one.regret
    )
    lines, rows = [], []
    for one in here:
        world, seqlen, mask, _, kernel, direction, _ = one.setting
        where = f"{world} × {format_length(int(str(seqlen)) // int(str(world)))}"
        lines.append(
            {
                "setting": where,
                "mask": mask,
                "kernel": kernel,
                "direction": direction,
                "taken": one.taken,
                "best": one.best,
                "regret": one.regret,
            }
        )
        rows.append((where, str(mask), str(kernel), str(direction), one.taken, one.best, percent(one.regret)))
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
    ours = next(one for one in rules if one["rule"] == "predicted")
    others = [one for one in rules if one["rule"] != "predicted" and one["settings"] == ours["settings"]]
    best = min(others, key=lambda one: float(one["mean_regret"]))
    inside = [float(one["coverage"]) for one in intervals]
    missed = [
        f"{one['held_out']}: median {percent(float(one['median']))}, {percent(float(one['within']))} within "
        f"{percent(MOST)}"
        for one in ways
        if one["verdict"] == "missed"
    ]
    missed += [
        f"{one['intervals_without']} held out: intervals hold {percent(float(one['coverage']))}"
        for one in intervals
        if one["verdict"] == "missed"
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
    residuals = by_mask(cells, records)
    own = [cell for cell in cells if cell.work is not None][::2]
    groups = by_group(
        own,
        {
            "ranks": lambda cell: f"{cell.record.cell.world} ranks",
            "strategy": lambda cell: str(cell.record.cell.strategy),
        },
    )
    first, intervals = splits(residuals, groups), coverage(residuals)
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
        page.write_text(put(page.read_text(encoding="utf-8"), "predict_conclusion", text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
