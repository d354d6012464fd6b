"""The end of a run as tables: rates by mask and method with the best marked, and what came of each method's cells."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from longca.bench.run.scores import FAILED, Score, Scoreboard, ShortNames
from longca.core.record import STATUSES
from longca.core.units import format_length
from longca.store.text import number

BEST = "*"
SHORT = {"unsupported": "unsup.", "unavailable": "unavail."}


@dataclass(frozen=True)
class Table:
    """A table to print."""

    title: str
    columns: list[str]
    rows: list[list[str | int]]
    caption: str = ""


def rate_tables(board: Scoreboard, width: int) -> list[Table]:
    """Rates in TFLOP/s, a row for each mask and a column for each method; as many tables side by side as do not fit into the width.

    Each number is of the mask's longest sequence, the median where several cells of that length differ by heads, seed or the like.
    """
    ranked = [score for score in board.scores if score.is_ranked and score.tflops is not None]
    names = ShortNames([score.cell for score in ranked])
    cells: dict[tuple[str, ...], dict[str, list[Score]]] = defaultdict(lambda: defaultdict(list))
    for score in ranked:
        world = f"×{score.cell.world}" if score.cell.kind == "cp" else ""
        cells[names.mask(score.cell), score.cell.direction, world][score.cell.method].append(score)
    rates = {row: _at_longest(methods) for row, methods in cells.items()}
    methods = list(dict.fromkeys(method for found in cells.values() for method in sorted(found)))
    heads = [("mask", max((len(row[0]) for row in rates), default=0)), ("", 3),
             *([("ranks", 5)] if any(row[2] for row in rates) else []), ("S", 4)]
    room = max((width - sum(chars + 2 for _, chars in heads)) // (max(map(len, methods), default=1) + 3), 1)
    several = any(len(found) > 1 for by_method in cells.values() for found in _longest_only(by_method).values())
    caption = (f"{BEST} the best. Longest sequence of each mask" + (", median over its cells" if several else "")
               + (f"; {names.common}." if names.common else "."))
    tables = []
    for start in range(0, len(methods), room):
        shown = methods[start:start + room]
        rows: list[list[str | int]] = []
        for row in sorted(rates):
            length, by_method = rates[row]
            best = max(by_method.values())
            lead = [row[0], row[1], *([row[2]] if any(other[2] for other in rates) else []), format_length(length)]
            rows.append([*lead, *(f"{number(by_method[method])}{BEST if by_method[method] == best and len(by_method) > 1 else ' '}"
                                  if method in by_method else "" for method in shown)])
        tables.append(Table("TFLOP/s", [name for name, _ in heads] + shown, rows, caption))
    return tables


def _longest_only(methods: dict[str, list[Score]]) -> dict[str, list[Score]]:
    length = max(score.cell.seqlen for found in methods.values() for score in found)
    kept = {method: [score for score in found if score.cell.seqlen == length] for method, found in methods.items()}
    return {method: found for method, found in kept.items() if found}


def _at_longest(methods: dict[str, list[Score]]) -> tuple[int, dict[str, float]]:
    """The longest length, and the median rate of each method there."""
    kept = _longest_only(methods)
    length = next(iter(kept.values()))[0].cell.seqlen
    return length, {method: median(score.tflops for score in found if score.tflops is not None) for method, found in kept.items()}


def outcome_table(board: Scoreboard) -> Table:
    """The number of cells of each status and the largest error over its budget, a row for each method."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    errors: dict[str, float] = defaultdict(float)
    for score in board.scores:
        counts[score.cell.method][score.status] += 1
        errors[score.cell.method] = max(errors[score.cell.method], score.error_of_budget or 0.0)
    found = [status for status in STATUSES if any(of_method[status] for of_method in counts.values())]
    rows: list[list[str | int]] = [[method, *(of_method[status] for status in found), number(errors[method], 2) if errors[method] else ""]
                                   for method, of_method in sorted(counts.items())]
    return Table("Outcomes", ["method", *(SHORT.get(status, status) for status in found), "of budget"], rows,
                 "of budget: the largest error of the method over the error that rounding allows; above 1 is wrong.")


def failures(board: Scoreboard) -> Sequence[Score]:
    """The scores that are verdicts, wrong results first."""
    return sorted((score for score in board.scores if score.is_failed), key=lambda score: FAILED.index(score.status))
