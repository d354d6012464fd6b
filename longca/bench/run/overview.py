"""The end of a run as tables: rates by mask and method with the best marked, and what came of each method's cells."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from statistics import median

from longca.bench.run.scores import FAILED, Problem, Score, Scoreboard, ShortNames
from longca.core.record import STATUSES
from longca.core.units import format_length
from longca.store.text import number, plural, rate_scale

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
    """Rates for each direction and number of ranks, all in one unit: a row for each mask, a column for each method.

    Each number is of the mask's longest sequence, the median where several cells of that length differ by heads, seed or the like.
    The caption names the lengths that are left out. Methods that do not fit into `width` characters have a table of their own below.
    """
    ranked = [score for score in board.scores if score.is_ranked and score.tflops is not None]
    names = ShortNames([score.cell for score in ranked])
    found: dict[tuple[int, str], dict[str, list[Score]]] = defaultdict(lambda: defaultdict(list))
    for score in ranked:
        world = score.cell.world if score.cell.kind == "cp" else 0
        found[world, score.cell.direction][names.mask(score.cell)].append(score)
    tables: list[Table] = []
    factor, unit = rate_scale(max((score.tflops or 0.0 for score in ranked), default=0.0))
    marked = any(len({score.cell.method for score in scores}) > 1 for by_mask in found.values() for scores in by_mask.values())
    for world, direction in sorted(found, key=lambda key: (key[0], key[1] != "fwd")):
        by_mask = {mask: _longest(scores) for mask, scores in sorted(found[world, direction].items())}
        ranks = f", {world} ranks" if world else ""
        shorter = {score.cell.seqlen for scores in found[world, direction].values() for score in scores} - {
            length for length, _ in by_mask.values()}
        left_out = f"also measured: S={','.join(map(format_length, sorted(shorter)))}, shown by `longca report`" if shorter else ""
        tables += _tables(f"{unit}, {DIRECTIONS[direction]}{ranks}", by_mask, factor, (names.common, left_out), marked, width)
    return [replace(table, caption="") if later and table.caption == later.caption else table
            for table, later in zip_longest(tables, tables[1:])]  # once for all tables in a row that it holds for


def finding(board: Scoreboard) -> str:
    """Number of best times of each method; empty where no two methods ran the same problem."""
    shares: dict[Problem, dict[str, float]] = defaultdict(dict)
    for score in board.scores:
        share = board.share(score)
        if share is not None:
            shares[score.problem][score.cell.method] = share
    contested = [by_method for by_method in shares.values() if len(by_method) > 1]
    if not contested:
        return ""
    wins = Counter(max(by_method, key=by_method.__getitem__) for by_method in contested).most_common()
    (first, count), *others = wins
    rest = "".join(f", {method} in {number}" for method, number in others)
    return f"{first} has the best median in {count} of {plural(len(contested), 'case')} that several methods ran{rest}."


def _longest(scores: list[Score]) -> tuple[int, dict[str, list[float]]]:
    """The longest length, and the rates of each method there."""
    length = max(score.cell.seqlen for score in scores)
    rates: dict[str, list[float]] = defaultdict(list)
    for score in scores:
        if score.cell.seqlen == length and score.tflops is not None:
            rates[score.cell.method].append(score.tflops)
    return length, rates


def _tables(title: str, by_mask: dict[str, tuple[int, dict[str, list[float]]]], factor: float, notes: tuple[str, ...],
            marked: bool, width: int) -> list[Table]:
    lengths = {length for length, _ in by_mask.values()}
    if len(lengths) == 1:
        title += f", S={format_length(*lengths)}"
    several = any(len(values) > 1 for _, rates in by_mask.values() for values in rates.values())
    caption = "; ".join(filter(None, (f"{BEST} the best" if marked else "", "median of the cells of each" if several else "", *notes)))
    lead = max(map(len, by_mask)) + (GAP + 5 if len(lengths) > 1 else 0)
    tables = []
    for methods in _packed(sorted({method for _, rates in by_mask.values() for method in rates}), width - lead - GAP):
        rows: list[list[str | int]] = []
        for mask, (length, rates) in by_mask.items():
            medians = {method: median(values) for method, values in rates.items()}
            best = max(medians, key=medians.__getitem__) if len(medians) > 1 else ""
            texts = {method: f"{number(factor * rate)}{BEST if method == best else ''}" for method, rate in medians.items()}
            rows.append([mask, *([format_length(length)] if len(lengths) > 1 else []), *(texts.get(method, "") for method in methods)])
        tables.append(Table(title, ["mask", *(["S"] if len(lengths) > 1 else []), *methods], rows, f"{caption}." if caption else ""))
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
    found = [status for status in STATUSES if any(of_method[status] for of_method in counts.values())]
    rows: list[list[str | int]] = [[method, *(of_method[status] for status in found), number(errors[method], 2) if errors[method] else ""]
                                   for method, of_method in sorted(counts.items())]
    return Table("Outcomes", ["method", *(SHORT.get(status, status) for status in found), "worst"], rows,
                 "worst: the largest error over what rounding allows; above 1 is wrong.")


def failures(board: Scoreboard) -> Sequence[Score]:
    """The scores that are verdicts, wrong results first."""
    return sorted((score for score in board.scores if score.is_failed), key=lambda score: FAILED.index(score.status))
