"""The headline: what ran, who is fastest where, how right and how steady it is, and what could not run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from longca.core.record import STATUSES
from longca.core.units import format_length
from longca.report.claims import fastest
from longca.report.rates import rate_points
from longca.report.series import DIRECTIONS, FAMILIES, labelled, rate_unit
from longca.store.text import number, percent, plural

if TYPE_CHECKING:
    import pandas as pd

FAMILY_TITLES = {"no documents": "Masks without documents", "documents": "Masks over documents", "block-sparse": "Block-sparse masks"}


@dataclass(frozen=True)
class Tile:
    """One number of the headline."""

    label: str
    value: str
    detail: str
    link: str


@dataclass(frozen=True)
class Winner:
    """The fastest method of one mask, or of one family of masks, in one direction."""

    method: str
    rate: str
    spread: str
    """quartiles of one mask; lowest and highest mask of a family"""
    rest: str
    """by how much it leads, and what stands behind the number"""
    cell_id: str = ""


@dataclass(frozen=True)
class Row:
    """A mask or a family, and who is fastest forward and backward."""

    title: str
    is_family: bool
    winners: dict[str, Winner | str]
    """direction → winner, or why there is none"""


def statuses(table: pd.DataFrame) -> list[tuple[str, int, float]]:
    """(status, number of cells, share) of those that occur."""
    counts = table.status.value_counts()
    return [(status, int(counts[status]), counts[status] / len(table)) for status in STATUSES if status in counts]


def tiles(table: pd.DataFrame) -> list[Tile]:
    """The headline's numbers."""
    attention = table[~table.is_control.astype(bool)]
    ok = attention[attention.status == "ok"]
    found = [Tile("Cells measured", f"{(table.status == 'ok').sum():,} of {len(table):,}", _not_ok(table), "#support")]
    things = "pair of mask and setting" if labelled(table).setting.any() else "mask"
    for direction, word in DIRECTIONS.items():
        winners = fastest(rate_points(table, "kernel", ["direction", "seqlen"], direction=direction), ["mask", "detail"])
        if len(winners) and (winners.num_methods > 1).any():
            method, count = winners.method.value_counts().index[0], int(winners.method.value_counts().iloc[0])
            found.append(Tile(f"Fastest {word}", method, f"on {count} of {plural(len(winners), things)}, each at its longest length", "#fastest"))
    if len(ok):
        worst = ok.loc[ok.budget_ratio.idxmax()]
        wrong = int((attention.status == "incorrect").sum())
        found.append(Tile("Nearest to its error budget", percent(worst.budget_ratio), f"{worst.method}, {worst['mask']}; " +
                          (f"{plural(wrong, 'cell')} beyond it" if wrong else "no cell is beyond it"), "#accuracy"))
        found.append(Tile("Typical noise", percent(ok.noise.median()),
                          f"interquartile range over median, {plural(int(ok.num_samples.sum()), 'sample')}", "#noise"))
    control = table[table.is_control.astype(bool) & table.error.notna()]
    if len(control):
        found.append(Tile("Timer off by at most", percent(control.error.max()),
                          f"of calls of known length; {percent(control.error_budget.min())} is allowed", "#noise"))
    return found


def fastest_table(table: pd.DataFrame) -> list[tuple[str, str, list[Row]]]:
    """For each setting (its name, the length if all masks share their longest, a row for each family of masks and for its masks)."""
    named = labelled(table)
    data = rate_points(table, "kernel", ["direction", "seqlen"])
    families = dict(zip(named.mask_label, named.mask_family, strict=True))
    if not len(data):
        return []
    factor, unit = rate_unit(data.value.max())
    found = []
    for setting, points in data.groupby("setting", sort=True):
        longest = points[points.value.notna()].groupby(["mask_label", "direction"]).seqlen.max()
        length = format_length(int(longest.iloc[0])) if longest.nunique() == 1 else ""
        found.append((str(setting), length, [row for family in FAMILIES for row in _family(points, families, family, factor, unit, not length)]))
    return found


def _family(data: pd.DataFrame, families: dict[str, str], family: str, factor: float, unit: str, tell_length: bool) -> list[Row]:
    members = data[[families[label] == family for label in data.mask_label]]
    labels = list(dict.fromkeys(members.mask_label))
    if not labels:
        return []
    winners = fastest(members, ["mask_label", "direction"])
    rows = [Row(FAMILY_TITLES[family], True, {direction: _of_family(members, winners, direction, factor, unit) for direction in DIRECTIONS})]
    for label in labels:
        found: dict[str, Winner | str] = {}
        for direction in DIRECTIONS:
            row = winners[(winners.mask_label == label) & (winners.direction == direction)]
            found[direction] = _of_mask(row.iloc[0], factor, unit, tell_length) if len(row) else "not timed"
        rows.append(Row(label, False, found))
    return rows


def _of_mask(row: pd.Series, factor: float, unit: str, tell_length: bool) -> Winner:
    lead = f"{number(row.lead, 3)}× {row.second}" if row.second else "no other ran"
    return Winner(row.method, f"{number(row.value * factor)} {unit}", f"{number(row.low * factor)}–{number(row.high * factor)}",
                  f"{lead}, {f'{format_length(int(row.seqlen))}, ' if tell_length else ''}n = {row.num_samples}", row.cell_ids.split(" ")[0])


def _of_family(members: pd.DataFrame, winners: pd.DataFrame, direction: str, factor: float, unit: str) -> Winner | str:
    """The method with the highest geometric mean among those that ran every mask of the family at its longest length."""
    import numpy as np

    asked = winners[winners.direction == direction]
    if not len(asked):
        return "not timed"
    timed = members[(members.direction == direction) & members.value.notna()]
    timed = timed.merge(asked[["mask_label", "seqlen"]], on=["mask_label", "seqlen"])
    complete = {method: rows for method, rows in timed.groupby("method") if rows.mask_label.nunique() == len(asked)}
    if not complete:
        return f"no kernel ran all {len(asked)} masks"
    means = sorted(((float(np.exp(np.log(rows.value.astype(float)).mean())), method) for method, rows in complete.items()), reverse=True)
    mean, method = means[0]
    rates = complete[method].value * factor
    lead = f"{number(mean / means[1][0])}× {means[1][1]}" if len(means) > 1 else "no other ran them all"
    missing = sorted(set(timed.method) - set(complete))
    without = f"; not ranked: {', '.join(missing)}" if missing else ""
    return Winner(method, f"{number(mean * factor)} {unit}", f"{number(rates.min())}–{number(rates.max())}",
                  f"{lead}, n = {int(complete[method].num_samples.sum())}{without}")


def _not_ok(table: pd.DataFrame) -> str:
    rest = [f"{count} {status}" for status, count, _ in statuses(table) if status != "ok"]
    return ", ".join(rest) or "every cell is ok"
