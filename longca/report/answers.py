"""The headline's numbers: the cells that ran, the fastest method, accuracy, and noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from longca.core.record import STATUSES
from longca.report.findings import contested, fastest, rivals, wins
from longca.report.rates import rate_points
from longca.report.series import DIRECTIONS, is_repeat, labelled, without_repeats
from longca.store.text import percent, plural

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Tile:
    """One number of the headline."""

    label: str
    value: str
    detail: str
    link: str


def statuses(table: pd.DataFrame) -> list[tuple[str, int, float]]:
    """(status, number of cells, share) of those that occur."""
    counts = table.status.value_counts()
    return [(status, int(counts[status]), counts[status] / len(table)) for status in STATUSES if status in counts]


def tiles(table: pd.DataFrame) -> list[Tile]:
    """The headline's numbers."""
    attention = table[~table.is_control.astype(bool)]
    ok = attention[attention.status == "ok"]
    found = [Tile("Cells measured", f"{(table.status == 'ok').sum():,} of {len(table):,}", _not_ok(table), "#support")]
    parallel = (attention.kind == "cp").any()
    for kind in ("cp", "kernel") if parallel else ("kernel",):
        for direction in DIRECTIONS:
            found += _fastest(table, kind, direction, parallel)
    if len(ok):
        worst = ok.loc[ok.budget_ratio.idxmax()]
        wrong = int((attention.status == "incorrect").sum())
        found.append(Tile("Nearest to its error budget", percent(worst.budget_ratio), f"{worst.method}, {worst['mask']}; " +
                          (f"{plural(wrong, 'cell')} beyond it" if wrong else "no cell is beyond it"), "#accuracy"))
        found.append(Tile("Typical noise", percent(ok.noise.median()),
                          f"interquartile range over median, {plural(int(ok.num_samples.sum()), 'sample')}", "#noise"))
    waits = table[table.nominal_ms.notna() & table.error.notna()]
    if len(waits):
        found.append(Tile("Timer off by at most", percent(waits.error.max()),
                          f"of calls of known length; {percent(waits.error_budget.min())} is allowed", "#noise"))
    return found


def _fastest(table: pd.DataFrame, kind: str, direction: str, parallel: bool) -> list[Tile]:
    """The strategy or the kernel that is most often the fastest; none where no two of them ran the same."""
    named = labelled(table)
    data = rate_points(named, kind, ["direction", "seqlen", "world"], direction=direction)
    data = without_repeats(data.assign(is_repeat=is_repeat(data, named)))
    by, things = ["mask_label", "setting"], "pair of mask and setting" if named.setting.any() else "mask"
    if kind == "cp":
        by, things = [*by, "world", "seqlen"], "combination of mask, ranks and length"
    winners = contested(fastest(data, by))
    if not len(winners):
        return []
    method, count = wins(winners)[0]
    doubtful = int((~winners.clear.astype(bool) & (winners.method == method)).sum())
    detail = (f"on {count} of {plural(len(winners), things)}{f', {doubtful} of them within the noise' if doubtful else ''}; "
              f"against {rivals(winners)} other{'s' if winners.num_methods.max() > 2 else ''}")
    label = f"Fastest strategy, {DIRECTIONS[direction]}" if kind == "cp" else \
        f"Fastest kernel{' alone' if parallel else ''}, {DIRECTIONS[direction]}"
    return [Tile(label, method, detail, "#fastest-cp" if kind == "cp" and (table.kind[~table.is_control.astype(bool)] == "kernel").any()
                 else "#fastest")]


def _not_ok(table: pd.DataFrame) -> str:
    rest = [f"{count} {status}" for status, count, _ in statuses(table) if status != "ok"]
    return ", ".join(rest) or "every cell is ok"
