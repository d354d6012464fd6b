"""The deterministic league: kernels whose gradients have the same bits in every run, ranked by themselves."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from longca.core import FIXED_ORDER, UserError, by_numbers, format_length
from longca.lab.ranking import compare
from longca.lab.ranking.sentences import finding_text
from longca.lab.report.decide.cases import CaseKey, cases
from longca.lab.report.matrix import SHORT
from longca.lab.report.series import labelled, mask_order
from longca.lab.store.text import names, number, percent, plural

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd

    from longca.lab.ranking import Standing
    from longca.lab.report.series import Unit

NOT_ASKED = "–"
Standings = dict[CaseKey, "Standing"]


class LeagueEntry(NamedTuple):
    """One method in one case."""

    rate: str
    cost: str
    """of the fixed order: its rate beside that of the same kernel in any order; "" where that is not known"""
    is_leader: bool
    """it leads, alone or in a tie"""
    cell_id: str


@dataclass(frozen=True)
class LeagueRow:
    """One case."""

    mask: str
    length: str
    entries: Mapping[str, LeagueEntry | str]
    """method → its number, or why there is none, in a word"""
    lead: str
    """of the first over the second: "1.23 ×"; "tie", or "" without a second"""


@dataclass(frozen=True)
class League:
    """The tables of all settings, and what they show."""

    findings: Sequence[str]
    """the conclusions, one sentence or two each"""
    methods: Sequence[str]
    tables: Sequence[tuple[str, Sequence[LeagueRow]]]
    """(setting, rows); the setting is "" if there is one"""

    @property
    def cell_ids(self) -> set[str]:
        """The cells of its numbers."""
        return {
            entry.cell_id
            for _, rows in self.tables
            for row in rows
            for entry in row.entries.values()
            if isinstance(entry, LeagueEntry)
        }


def league(table: pd.DataFrame, unit: Unit) -> League | None:
    """The league of a table; None if no two methods of one case were found to be deterministic.

    Args:
        table: the derived table, perhaps labelled.
        unit: of the rates.
    """
    named = labelled(table)
    if not named.deterministic.eq(True).any():
        return None
    own = cases(named, "kernel", deterministic=True)
    if not any(case.is_compared for case in own.standings.values()):
        return None
    open_cases = cases(named, "kernel").standings
    methods = _methods(own.standings)
    order = {mask: index for index, mask in enumerate(mask_order(named))}
    tables: dict[str, list[LeagueRow]] = defaultdict(list)
    for key in sorted(own.standings, key=lambda key: (key.setting, key.seqlen, order[key.mask_label])):
        tables[key.setting].append(_row(key, own.standings[key], open_cases.get(key), methods, unit))
    of_devices: dict[str, Standings] = defaultdict(dict)
    for key, case in own.counting.items():
        of_devices[case.device][key] = case
    findings = [
        sentence
        for device, of_device in of_devices.items()
        for sentence in _findings(of_device, open_cases, device if len(of_devices) > 1 else "")
    ]
    return League(findings, methods, sorted(tables.items(), key=lambda item: by_numbers(item[0])))


def _methods(standings: Standings) -> list[str]:
    """Those that lead most often first; those that ran nothing are left out."""
    leads: dict[str, int] = defaultdict(int)
    for case in standings.values():
        for entry in case.entries:
            leads[entry.method] += entry.method in case.leaders
    return sorted(leads, key=lambda method: (-leads[method], method))


def _row(
    key: CaseKey, case: Standing, in_any_order: Standing | None, methods: Sequence[str], unit: Unit
) -> LeagueRow:
    entries: dict[str, LeagueEntry | str] = {}
    for method in methods:
        entry = case.entry(method)
        if entry is None:
            status = case.could_not.get(method, "")
            entries[method] = SHORT.get(status, status) or NOT_ASKED
            continue
        slower = _slowdown(method, case, in_any_order)
        entries[method] = LeagueEntry(
            number(entry.rate * unit.factor),
            "" if slower is None else _change(slower),
            method in case.leaders,
            entry.point.best_known[0].cell_id,
        )
    lead = "" if case.lead is None else f"{number(case.lead.ratio)} ×" if case.is_clear else "tie"
    return LeagueRow(key.mask_label, format_length(int(key.seqlen)), entries, lead)


def _slowdown(method: str, case: Standing, in_any_order: Standing | None) -> float | None:
    """The time of a kernel in a fixed order over that in any order, each measured by itself; None if one is
    not known."""
    if in_any_order is None or not method.endswith(FIXED_ORDER):
        return None
    entry = case.entry(method)
    usual = in_any_order.entry(method.removesuffix(FIXED_ORDER))
    if entry is None or usual is None:
        return None
    return compare(usual.point.by_itself(), entry.point.by_itself()).ratio


def _change(slower: float) -> str:
    """2.0 → "−50 %"."""
    share = 1 / slower - 1
    return f"{'−' if share < 0 else '+'}{percent(abs(share))}"


def _findings(standings: Standings, open_cases: Mapping[CaseKey, Standing], device: str) -> list[str]:
    compared = {key: case for key, case in standings.items() if case.is_compared}
    if not compared:
        return []
    masks = {key.mask_label for key in compared}
    lengths = sorted({int(key.seqlen) for key in compared})
    covered = f"{plural(len(masks), 'mask')} at {names([format_length(length) for length in lengths])} tokens"
    on = f" on {device}" if device else ""
    opening = (
        f"Among kernels whose gradients have the same bits in every run, backward{on}, "
        f"{finding_text(standings, 'kernel', covered)}"
    )
    return [opening, *filter(None, [_ratios(compared), _costs(standings, open_cases)])]


def _ratios(compared: Standings) -> str:
    """The rates of the method that leads most often over the best other one."""
    best = _methods(compared)[0]
    ratios: dict[CaseKey, float] = {}
    for key, case in compared.items():
        entry = case.entry(best)
        if entry is not None and case.lead is not None:
            ratios[key] = case.lead.ratio if entry.place == 1 else entry.share
    least = min(ratios, key=ratios.__getitem__)
    most = max(ratios, key=ratios.__getitem__)
    return (
        f"{best} has {number(median(ratios.values()))} × the rate of the best other one in the median of "
        f"{plural(len(ratios), 'case')}, from {_at(ratios, least)} to {_at(ratios, most)}."
    )


def _at(ratios: Mapping[CaseKey, float], key: CaseKey) -> str:
    return f"{number(ratios[key])} × ({key.mask_label}, {format_length(int(key.seqlen))})"


def _costs(standings: Standings, open_cases: Mapping[CaseKey, Standing]) -> str:
    """The time that a fixed order takes, for each kernel that was measured in any order as well."""
    slower: dict[str, list[float]] = defaultdict(list)
    for key, case in standings.items():
        for entry in case.entries:
            ratio = _slowdown(entry.method, case, open_cases.get(key))
            if ratio is not None:
                slower[entry.method.removesuffix(FIXED_ORDER)].append(ratio)
    parts = [
        f"{kernel} {number(median(ratios))} × as long in the median of {plural(len(ratios), 'case')}, "
        f"{number(max(ratios))} × at most"
        for kernel, ratios in sorted(slower.items())
    ]
    return f"A fixed order takes {'; '.join(parts)}." if parts else ""


def backward_only(direction: str) -> str:
    """The direction that a question about determinism is asked in. Raises UserError: it is forward."""
    if direction == "fwd":
        raise UserError(
            "Forward needs no choice among deterministic methods",
            why="its sums have a fixed order anyway",
            todo="Ask for `bwd`, or for all methods",
        )
    return "bwd"


def proven_rows(table: pd.DataFrame) -> pd.DataFrame:
    """The rows that compete where gradients must have the same bits in every run. Raises UserError: there are
    none."""
    from longca.lab.store.table import is_deterministic

    rows = table.loc[is_deterministic(table)]
    if not (rows.status == "ok").any():
        raise UserError(
            "No record proves that gradients have the same bits in every run",
            why="older records do not, and others are of kernels that promise nothing",
            todo="`longca run deterministic` measures those that do",
        )
    return rows
