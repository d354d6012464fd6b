"""An answer as a short piece of HTML, for notebooks."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from longca.store.text import format_bytes, number

if TYPE_CHECKING:
    from longca.advice.ranking import Advice

MOST_ROWS = 6


def html(advice: Advice) -> str:
    """The finding, the setting, the first options as a table, and the assumptions."""
    columns = ["method", "ms", "90 %", "TFLOP/s a GPU", "memory", "limited by"]
    several = len(advice.seeds) > 1
    if several:
        columns.insert(3, f"first in, of {len(advice.seeds)}")
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    rows = []
    for option in advice.options[:MOST_ROWS]:
        forecast = option.prediction
        cells = [
            option.candidate.title,
            number(forecast.seconds * 1e3),
            f"{number(option.low_s * 1e3)}–{number(option.high_s * 1e3)}",
            *([str(option.first_in)] if several else []),
            number(option.tflops),
            format_bytes(forecast.memory_bytes),
            forecast.limit,
        ]
        rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    left = len(advice.options) - len(rows)
    more = f"<p>{left} more in <code>options</code>.</p>" if left else ""
    assumed = "".join(f"<li>{escape(text)}</li>" for text in advice.assumptions)
    return (
        f"<p><b>{escape(advice.finding)}</b></p><p>{escape(advice.question.setting)}; messages by "
        f"{escape(advice.question.network.name)}</p>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>{more}"
        + (f"<p>Assumed:</p><ul>{assumed}</ul>" if assumed else "")
    )
