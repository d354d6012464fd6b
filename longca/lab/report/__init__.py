"""The page and its figures, made only from records. Never imports torch."""

from typing import TYPE_CHECKING

from longca.core.lazy import face

if TYPE_CHECKING:
    from longca.lab.report import (
        build,
        choose,
        content,
        decide,
        look,
        panels,
        questions,
        rates,
        series,
        tables,
    )
    from longca.lab.report.contract import Figure
    from longca.lab.report.findings import at_largest, span_text, standings_of, uncompared_text
    from longca.lab.report.index import write_index
    from longca.lab.report.matrix import WORST_FIRST
    from longca.lab.report.rows import merged_json, points_json, with_anchors
else:
    __getattr__, __dir__ = face(__name__)

__all__ = [
    "WORST_FIRST",
    "Figure",
    "at_largest",
    "build",
    "choose",
    "content",
    "decide",
    "look",
    "merged_json",
    "panels",
    "points_json",
    "questions",
    "rates",
    "series",
    "span_text",
    "standings_of",
    "tables",
    "uncompared_text",
    "with_anchors",
    "write_index",
]
