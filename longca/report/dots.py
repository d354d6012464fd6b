"""A dot plot: one row for each mask, for figures whose horizontal axis would have a single value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.report.panels import PANEL
from longca.report.style import INK, MUTED, RULE

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Canvas

    from longca.report.style import Style

ROW_IN = 0.24


def draw_dots(data: pd.DataFrame, style: Style, *, unit: str) -> Canvas:
    """Points as `longca.report.series.points` gives them, with columns `method` and perhaps `direction` (backward is hollow)."""
    rows = list(data.groupby(PANEL, sort=False))
    both = "direction" in data and data.direction.nunique() > 1
    legend = style.legend_of(data, dots=True)
    names = [", ".join(part for part in key if part) for key, _ in rows]
    left = style.names_in(names)
    width = min(style.width_in - left - 0.2, 6.5)
    top = style.legend_in(legend) + 0.1
    height = top + len(rows) * ROW_IN + 0.55
    canvas = style.canvas(height)
    ax = canvas.add_axes((left / style.width_in, 0.45 / height, width / style.width_in, len(rows) * ROW_IN / height))
    style.clean(ax)
    for position, (_, cells) in enumerate(rows):
        for cell in cells.itertuples():
            colour, hollow = style.colour(cell.method), both and cell.direction == "bwd"
            if cell.status != "ok":
                ax.plot(0, position, "x", color=colour, markersize=5, markeredgewidth=1.5, clip_on=False)
                continue
            ax.hlines(position, cell.low, cell.high, color=colour, linewidth=1.1, alpha=0.55)
            ax.plot(cell.value, position, style.marker(cell.method), color=colour, markersize=5, markeredgewidth=1.1,
                    markerfacecolor="none" if hollow else colour, clip_on=False)
    ax.set(xlim=(0, float(data.high.max()) * 1.05 if data.high.notna().any() else 1), ylim=(len(rows) - 0.5, -0.5))
    ax.set_yticks(range(len(rows)), names, color=INK[0])
    ax.grid(axis="y", color=RULE[0], linewidth=0.5, linestyle=(0, (1, 3)))
    ax.grid(axis="x", color=RULE[0], linewidth=0.7)
    ax.set_xlabel(unit, color=MUTED[0], fontsize=8, labelpad=4)
    style.legend(canvas, legend)
    return canvas
