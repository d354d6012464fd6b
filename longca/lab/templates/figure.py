"""Time of a call over length, one panel for each mask. Replace data, title and drawing with your own.

A figure uses only the derived table: `docs/reference/columns.md` lists its columns with units.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.core import format_length
from longca.lab.report import Figure
from longca.lab.report.look import join
from longca.lab.report.panels import MASK, draw_panels, in_panel_order
from longca.lab.report.series import DIRECTIONS, attention, labelled, points
from longca.lab.store.text import number

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Canvas

    from longca.lab.report.look import Style


class NewFigure(Figure):
    label = "New figure"
    section = "dense"  # section of the page: dense, sparse, cp, memory, accuracy or noise
    order = 90  # within the section
    caption = "Median time of a call in ms: lower is better. Solid lines are forward, dashed ones backward."

    def data(self, table: pd.DataFrame) -> pd.DataFrame:
        """The rows of the figure and of its CSV; empty if there is nothing to draw.

        `attention` removes records that may not be ranked; `points` merges seeds and keeps the spread and the
        cells.
        """
        named = labelled(table)
        tried = attention(named, "kernel")
        columns = "time_ms_median", "time_ms_q1", "time_ms_q3"
        return in_panel_order(
            points(tried, [*MASK, "method", "direction", "seqlen"], *columns, unit="ms"), named
        )

    def title(self, data: pd.DataFrame) -> str:
        """The finding with its number, computed from the data."""
        timed = data.loc[data.value.notna()]
        if not len(timed):
            return f"None of {len(data)} cells could be timed"
        longest = timed.loc[timed.seqlen == timed.seqlen.max()]
        least = longest.loc[longest.value.idxmin()]
        where = join(
            str(least["mask"]), least.detail, DIRECTIONS[least.direction], format_length(int(least.seqlen))
        )
        return f"Shortest call: {least.method} takes {number(least.value)} ms ({where})"

    def draw(self, data: pd.DataFrame, style: Style) -> Canvas:
        """Use colours and marks of the style, so that the page can switch themes and link each mark to its
        records."""
        return draw_panels(
            data, style, x="seqlen", x_text=format_length, unit="ms", y_log=True, lowest_is_best=True
        )
