"""Comparison of two sets of records, or of records with published rates: pairs, verdicts and summaries."""

from typing import TYPE_CHECKING

from longca.core.lazy import face

if TYPE_CHECKING:
    from longca.lab.compare import markdown, page, tables
    from longca.lab.compare.comparison import Comparison, compare_published, compare_records
    from longca.lab.compare.fail_on import matched, parse_fail_on, parse_share
    from longca.lab.compare.history import HistorySource, histories
    from longca.lab.compare.history_text import conclusion, history_blocks, history_lines
    from longca.lab.compare.verdict import Rule
else:
    __getattr__, __dir__ = face(__name__)

__all__ = [
    "Comparison",
    "HistorySource",
    "Rule",
    "compare_published",
    "compare_records",
    "conclusion",
    "histories",
    "history_blocks",
    "history_lines",
    "markdown",
    "matched",
    "page",
    "parse_fail_on",
    "parse_share",
    "tables",
]
