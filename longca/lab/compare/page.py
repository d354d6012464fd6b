"""A comparison as one offline page without scripts, in the style of the report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from longca.core import VERSION
from longca.lab.compare.comparison import WORDS, Comparison
from longca.lab.compare.history import Histories, Version
from longca.lab.compare.history_text import (
    HistoryNames,
    conclusion,
    figure_span,
    history_lines,
    interval_text,
    span_text,
    title,
    version_text,
)
from longca.lab.compare.tables import Described, lines, tables
from longca.lab.compare.verdict import OUTCOMES
from longca.lab.report.look import page_templates, static_text, theme

TEMPLATES = Path(__file__).parent / "templates"
WIDEST = math.log(2)  # a bar is full at twice the speed, and at half


def page(comparison: Comparison, sides: Sequence[Described], count: int | None = 10) -> str:
    """The page's HTML, with escaped texts of records.

    Args:
        count: largest number of rows of a table of cells; None for all.
    """
    rows = comparison.methods
    outcomes = [outcome for outcome in OUTCOMES if outcome in comparison.counts]
    return (
        page_templates(TEMPLATES)
        .get_template("compare.html.j2")
        .render(
            title=f"{sides[1].name} against {sides[0].name}",
            conclusion=comparison.conclusion,
            lines=lines(comparison, sides),
            counts=[(WORDS[outcome], comparison.counts[outcome]) for outcome in outcomes],
            words=WORDS,
            outcomes=outcomes,
            methods=[(row, _bar(row.mean_ratio)) for row in rows],
            tables=tables(comparison, count)[1 if rows else 0 :],
            notes=comparison.notes,
            theme=theme(),
            css=static_text("report.css"),
            generator=VERSION,
        )
    )


def history_page(histories: Histories, sides: Sequence[Described]) -> str:
    """The page of histories: HTML without scripts, with escaped texts of records."""
    entries = histories.attention
    names = HistoryNames(entries)
    span = figure_span(entries)
    methods = {entry.method for entry in entries}
    return (
        page_templates(TEMPLATES)
        .get_template("history.html.j2")
        .render(
            title=f"{methods.pop()} over its versions" if len(methods) == 1 else "Versions",
            conclusion=conclusion(histories),
            lines=history_lines(histories, sides),
            scale=span_text(span),
            entries=[
                (
                    title(entry, names),
                    [
                        (
                            version,
                            version_text(entry, version),
                            interval_text(version),
                            version.order(histories.rule),
                            _whisker(version, span),
                        )
                        for version in entry.versions
                    ],
                )
                for entry in entries
            ],
            theme=theme(),
            css=static_text("report.css"),
            generator=VERSION,
        )
    )


def _whisker(version: Version, span: float) -> tuple[float, float, float]:
    """(low, rate, high) in percent of the figure's width; the first version is in the middle."""
    if version.lead is None:
        return 50.0, 50.0, 50.0
    low, high = version.bounds or (version.lead.ratio, version.lead.ratio)
    low, middle, high = (50 + 48 * math.log(bound) / span for bound in (low, version.lead.ratio, high))
    return low, middle, high


def _bar(ratio: float | None) -> tuple[float, float, str] | None:
    """(start, width, tone) of a bar from the middle, in percent of its width; None without a ratio."""
    if ratio is None:
        return None
    length = 50 * min(abs(math.log(ratio)) / WIDEST, 1.0)
    return (50.0 if ratio > 1 else 50 - length), length, "good" if ratio > 1 else "slow"
