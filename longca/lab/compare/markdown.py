"""A comparison as a Markdown page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from longca.lab.compare.comparison import Comparison
from longca.lab.compare.history import Histories
from longca.lab.compare.history_text import conclusion, history_lines, history_table
from longca.lab.compare.tables import Described, TableOfText, lines, tables


def markdown(comparison: Comparison, sides: Sequence[Described], count: int | None = 10) -> str:
    """The comparison as a Markdown page, the conclusion first."""
    parts = [
        f"# {_plain(sides[1].name)} against {_plain(sides[0].name)}",
        f"**{_plain(comparison.conclusion)}**",
        "\n".join(f"- {_plain(line)}" for line in lines(comparison, sides)),
    ]
    for table in tables(comparison, count):
        parts += [f"## {table.title}", _table(table)]
    if comparison.notes:
        parts += [
            "## Notes",
            "\n".join(f"- {_plain(source)}: {_plain(note)}" for source, note in comparison.notes),
        ]
    return "\n\n".join(parts) + "\n"


def history_markdown(histories: Histories, sides: Sequence[Described]) -> str:
    """The histories as a Markdown page, the conclusion first."""
    parts = [
        f"# {_plain(', '.join(side.name for side in sides))}",
        f"**{_plain(conclusion(histories))}**",
        "\n".join(f"- {_plain(line)}" for line in history_lines(histories, sides)),
    ]
    table = history_table(histories)
    if table.rows:
        parts += [f"## {table.title}", _table(table)]
    return "\n\n".join(parts) + "\n"


def _table(table: TableOfText) -> str:
    return "\n".join(
        [
            _row(table.columns),
            _row("---" for _ in table.columns),
            *(_row(map(_plain, row)) for row in table.rows),
        ]
    )


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _plain(text: str) -> str:
    """Text escaped for Markdown."""
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return "".join(f"\\{sign}" if sign in "\\|`*_[]" else sign for sign in text)
