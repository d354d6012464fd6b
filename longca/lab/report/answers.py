"""The numbers of the headline: cells, the fastest method, accuracy, and noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from longca.lab.ranking import Standing, num_open, num_played_off, tallies
from longca.lab.ranking.sentences import protocols_of, rivals_text
from longca.lab.report.decide.cases import CaseKey, Cases, cases
from longca.lab.report.decide.heat_map import ALONE
from longca.lab.report.decide.views import setting_text
from longca.lab.report.findings import at_largest
from longca.lab.report.series import DIRECTIONS, labelled
from longca.lab.store.text import percent, plural
from longca.lab.studies import STATUSES

if TYPE_CHECKING:
    from collections.abc import Collection

    import pandas as pd

    from longca.lab.report.decide.views import Decision


@dataclass(frozen=True)
class Tile:
    """One number of the headline."""

    label: str
    value: str
    detail: str
    link: str


def cells_of(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each cell on each model of device: several processes measure a control. Rows with a number
    come first."""
    timed_first = table.sort_values("status", key=lambda status: status != "ok", kind="stable")
    return timed_first.drop_duplicates(["cell_id", "device"])


def statuses(table: pd.DataFrame) -> list[tuple[str, int, float]]:
    """(status, number of cells, share) of occurring statuses."""
    each = cells_of(table)
    counts = each.status.value_counts()
    return [
        (status, int(counts[status]), counts[status] / len(each)) for status in STATUSES if status in counts
    ]


def tiles(
    table: pd.DataFrame, ranked: Collection[str] = ("cp", "kernel"), decided: Decision | None = None
) -> list[Tile]:
    """The headline's numbers.

    Args:
        ranked: kinds of methods whose ranking the page shows; with both, each has a section.
        decided: the page's finding. The leaders of its kind are then those of its setting, so that a page
            has one answer.
    """
    attention = table[~table.is_control.astype(bool)]
    ok = attention[attention.status == "ok"]
    each = cells_of(table)
    headline = [
        Tile(
            "Cells measured", f"{(each.status == 'ok').sum():,} of {len(each):,}", _not_ok(table), "#support"
        )
    ]
    parallel = (attention.kind == "cp").any()
    for kind in ("cp", "kernel") if parallel else ("kernel",):
        of_kind = cases(labelled(table), kind)
        link = "#fastest-cp" if kind == "cp" and len(ranked) > 1 else "#fastest"
        at = None
        if decided and kind == _kind_of(decided) and len(_devices(of_kind)) == 1:
            at = f"at {setting_text(decided.default)}: "
            of_kind, link = decided.judged, "#decide"
        for direction, word in DIRECTIONS.items():
            label = (
                f"Leading strategy, {word}"
                if kind == "cp"
                else f"Leading kernel{' alone' if parallel else ''}, {word}"
            )
            headline += _fastest(of_kind, kind, direction, label, link, at)
    if len(ok):
        worst = ok.loc[ok.budget_ratio.idxmax()]
        wrong = int((attention.status == "incorrect").sum())
        headline.append(
            Tile(
                "Largest ratio of error to budget",
                percent(worst.budget_ratio),
                f"{worst.method}, {worst['mask']}; "
                + (f"{plural(wrong, 'cell')} beyond it" if wrong else "no cell exceeds it"),
                "#accuracy",
            )
        )
        headline.append(
            Tile(
                "Typical noise",
                percent(ok.noise.median()),
                f"interquartile range over median, {plural(int(ok.num_samples.sum()), 'sample')}",
                "#noise",
            )
        )
    waits = table[table.nominal_ms.notna() & table.error.notna()]
    if len(waits):
        headline.append(
            Tile(
                "Timer off by at most",
                percent(waits.error.max()),
                f"of calls of known length; {percent(waits.error_budget.min())} is allowed",
                "#noise",
            )
        )
    return headline


def _kind_of(decided: Decision) -> str:
    return "kernel" if decided.default.ranks == ALONE else "cp"


def _devices(of_kind: Cases) -> set[str]:
    return {case.device for case in of_kind.standings.values()}


def _fastest(of_kind: Cases, kind: str, direction: str, label: str, link: str, at: str | None) -> list[Tile]:
    """The strategy or kernel that most often leads alone, for each device model; none if no two methods ran
    the same case.

    Args:
        at: the setting of all cases, in words; None for cases of several.
    """
    of_device: dict[str, dict[CaseKey, Standing]] = {}
    for key, case in of_kind.where(direction=direction).counting.items():
        of_device.setdefault(case.device, {})[key] = case
    return [
        tile
        for device, of_one in of_device.items()
        for tile in _of_device(
            of_one, kind, f"{label}{f', {device}' if len(of_device) > 1 else ''}", link, at
        )
    ]


def _of_device(
    standings: dict[CaseKey, Standing], kind: str, label: str, link: str, at: str | None
) -> list[Tile]:
    things = "pair of mask and setting" if len({key.setting for key in standings}) > 1 else "mask"
    if at is None and kind == "cp":
        things = "combination of mask, ranks and length"
    elif at is None:
        if len({key.seqlen for key in standings}) > 1:  # the finding of the page may be of another length
            at = "at the longest length of each: "
        largest = at_largest(
            {(key.mask_label, key.setting, key.seqlen): case for key, case in standings.items()}
        )
        standings = {
            CaseKey(mask, "", setting, 1, seqlen): case for (mask, setting), (seqlen, case) in largest.items()
        }
    compared = {key: case for key, case in standings.items() if case.is_compared}
    if not compared:
        return []
    first = min(
        tallies(compared), key=lambda tally: (-tally.num_clear, -tally.num_leading, -tally.mean, tally.method)
    )
    ties = num_open(compared)
    played = num_played_off(compared)
    doubt = f"; {played or 'none'} played off" if played < len(compared) else ""
    protocols = protocols_of(compared)
    doubt += f"; {protocols}" if protocols else ""
    total = plural(len(compared), things)
    if first.num_clear:
        tied = f", in a tie on {first.num_shared}" if first.num_shared else ""
        nobody = f"; no method alone on {ties}" if ties else ""
        value = first.method
        lead = f"leads alone on {first.num_clear} of {total}{tied}{nobody}"
    else:
        value = "a tie"
        any_of = f"any of {total}" if len(compared) > 1 else f"the one {things}"
        lead = (
            f"no method leads alone on {any_of}; {first.method} is in the tie most often, on "
            f"{first.num_shared}"
        )
    return [Tile(label, value, f"{at or ''}{lead}; {rivals_text(compared)}{doubt}", link)]


def _not_ok(table: pd.DataFrame) -> str:
    rest = [f"{count} {status}" for status, count, _ in statuses(table) if status != "ok"]
    return ", ".join(rest) or "every cell is ok"
