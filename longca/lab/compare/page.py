"""A comparison as one offline page without scripts, in the style of the report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from longca.core import VERSION
from longca.lab.compare.comparison import WORDS, Comparison
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


def _bar(ratio: float | None) -> tuple[float, float, str] | None:
    """(start, width, tone) of a bar from the middle, in percent of its width; None without a ratio."""
    if ratio is None:
        return None
    length = 50 * min(abs(math.log(ratio)) / WIDEST, 1.0)
    return (50.0 if ratio > 1 else 50 - length), length, "good" if ratio > 1 else "slow"
