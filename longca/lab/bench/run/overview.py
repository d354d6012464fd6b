"""The end of a run as tables: rates by mask and method with the best marked, and outcomes of each method."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from statistics import geometric_mean

from longca.core import format_length
from longca.lab.bench.run.scores import FAILED, Case, Score, Scoreboard, ShortNames
from longca.lab.ranking import Standing, mean_standing
from longca.lab.ranking.sentences import counts_text
from longca.lab.store.text import number, plural, rate_scale, short_device
from longca.lab.studies import STATUSES, Cell

BEST = "*"
DIRECTIONS = {"fwd": "forward", "bwd": "backward"}
SHORT = {"unsupported": "unsup.", "unavailable": "unavail.", "incorrect": "wrong", "implausible": "implaus."}
RATE = 9  # characters of "0.00613" and a mark, and of the space around
GAP = 3  # between two columns


@dataclass(frozen=True)
class Table:
    """A table to print."""

    title: str
    columns: list[str]
    rows: list[list[str | int]]
    caption: str = ""


def rate_tables(board: Scoreboard, width: int) -> list[Table]:
    """Rates for each direction, number of ranks and number of new tokens after a context, in one unit: a row
    for each mask, a column for each method.

    Each number is of the mask's longest sequence, the geometric mean where several cases of that length
    differ by heads or the like. The caption names the lengths that are left out. Methods that do not fit
    into `width` characters have a table of their own below.
    """
    ranked = [score for score in board.scores if score.measurement is not None]
    cells = {score.case: score.cell for score in ranked}
    standings = board.standings()
    names = ShortNames([score.cell for score in ranked])
    groups: dict[tuple[str, int, int, str], dict[str, list[Case]]] = defaultdict(lambda: defaultdict(list))
    for case, cell in cells.items():
        world = cell.world if cell.kind == "cp" else 0
        group = standings[case].device, world, cell.new_tokens or 0, cell.direction
        groups[group][names.mask(cell)].append(case)
    tables: list[Table] = []
    factor, unit = rate_scale(max((score.tflops or 0.0 for score in ranked), default=0.0))
    marked = any(case.is_compared for case in standings.values())
    several_devices = len({device for device, *_ in groups}) > 1
    for group in sorted(groups, key=lambda key: (*key[:3], key[3] != "fwd")):
        device, world, new_tokens, direction = group
        rows = {mask: _longest(cases, cells, standings) for mask, cases in sorted(groups[group].items())}
        ranks = f", {world} ranks" if world else ""
        new = f", {format_length(new_tokens)} new tokens" if new_tokens else ""
        shorter = {cells[case].seqlen for cases in groups[group].values() for case in cases} - {
            row.length for row in rows.values()
        }
        left_out = (
            f"also measured: S={','.join(map(format_length, sorted(shorter)))}, shown by `longca report`"
            if shorter
            else ""
        )
        apart = sum(len(standings[case].other_protocol) for cases in groups[group].values() for case in cases)
        not_compared = (
            f"{plural(apart, 'number')} left out, of another protocol (with rests of the GPU, or without)"
            if apart
            else ""
        )
        where = f", {short_device(device)}" if several_devices else ""
        tables += _tables(
            f"{unit}, {DIRECTIONS[direction]}{ranks}{new}{where}",
            rows,
            factor,
            (names.common, left_out, not_compared),
            marked,
            width,
        )
    return [
        replace(table, caption="") if later and table.caption == later.caption else table
        for table, later in zip_longest(tables, tables[1:])
    ]  # once for all tables in a row that it holds for


def finding(board: Scoreboard) -> str:
    """The leaders of the cases that two methods or more ran, a sentence for each GPU; empty without any."""
    by_device: dict[str, dict[Case, Standing]] = defaultdict(dict)
    for case, standing in board.standings().items():
        if standing.is_compared:
            by_device[standing.device][case] = standing
    return " ".join(
        f"On {short_device(device)}: {counts_text(cases, 'case')}."
        for device, cases in sorted(by_device.items())
    )


@dataclass(frozen=True)
class _Row:
    """The cases of one mask at its longest length."""

    length: int
    rates: dict[str, float]
    """method → geometric mean of its rates, in TFLOP/s"""
    leaders: tuple[str, ...]
    """of those that ran all cases, the first and those not told apart from it; empty where no two did"""
    num_cases: int


def _longest(cases: list[Case], cells: Mapping[Case, Cell], standings: Mapping[Case, Standing]) -> _Row:
    length = max(cells[case].seqlen for case in cases)
    chosen = [standings[case] for case in cases if cells[case].seqlen == length]
    rates: dict[str, list[float]] = defaultdict(list)
    for case in chosen:
        for entry in case.entries:
            rates[entry.method].append(entry.rate)
    mean = chosen[0] if len(chosen) == 1 else mean_standing(chosen)
    return _Row(
        length,
        {method: geometric_mean(values) for method, values in rates.items()},
        mean.leaders if mean and mean.is_compared else (),
        len(chosen),
    )


def _tables(
    title: str, rows: Mapping[str, _Row], factor: float, notes: tuple[str, ...], marked: bool, width: int
) -> list[Table]:
    lengths = {row.length for row in rows.values()}
    if len(lengths) == 1:
        title += f", S={format_length(*lengths)}"
    several = any(row.num_cases > 1 for row in rows.values())
    best = (
        f"{BEST} the best, or not told apart from it"
        f"{', of those with a number in all cases' if several else ''}"
        if marked
        else ""
    )
    caption = "; ".join(
        filter(None, (best, "geometric mean of the cases of each" if several else "", *notes))
    )
    lead = max(map(len, rows)) + (GAP + 5 if len(lengths) > 1 else 0)
    tables = []
    for methods in _packed(
        sorted({method for row in rows.values() for method in row.rates}), width - lead - GAP
    ):
        content: list[list[str | int]] = []
        for mask, row in rows.items():
            marks = dict.fromkeys(row.leaders, BEST)
            texts = {
                method: f"{number(factor * rate)}{marks.get(method, '')}"
                for method, rate in row.rates.items()
            }
            length = [format_length(row.length)] if len(lengths) > 1 else []
            content.append([mask, *length, *(texts.get(method, "") for method in methods)])
        tables.append(
            Table(
                title,
                ["mask", *(["S"] if len(lengths) > 1 else []), *methods],
                content,
                f"{caption}." if caption else "",
            )
        )
    return tables


def _packed(methods: list[str], room: int) -> list[list[str]]:
    """The methods in groups whose columns fit, at least one in each."""
    groups: list[list[str]] = [[]]
    left = room
    for method in methods:
        needed = max(len(method), RATE) + GAP
        if groups[-1] and needed > left:
            groups.append([])
            left = room
        groups[-1].append(method)
        left -= needed
    return groups if methods else []


def outcome_table(board: Scoreboard) -> Table:
    """The number of cells of each status and the largest error over its budget, a row for each method."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    errors: dict[str, float] = defaultdict(float)
    for score in board.scores:
        counts[score.cell.method][score.status] += 1
        errors[score.cell.method] = max(errors[score.cell.method], score.error_of_budget or 0.0)
    statuses = [status for status in STATUSES if any(of_method[status] for of_method in counts.values())]
    rows: list[list[str | int]] = [
        [
            method,
            *(of_method[status] for status in statuses),
            number(errors[method], 2) if errors[method] else "",
        ]
        for method, of_method in sorted(counts.items())
    ]
    return Table(
        "Outcomes",
        ["method", *(SHORT.get(status, status) for status in statuses), "worst"],
        rows,
        "worst: the largest error over what rounding allows; above 1 is wrong.",
    )


def failures(board: Scoreboard) -> Sequence[Score]:
    """The scores that are verdicts, wrong results first."""
    return sorted(
        (score for score in board.scores if score.is_failed), key=lambda score: FAILED.index(score.status)
    )
