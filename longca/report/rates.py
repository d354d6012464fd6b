"""Data and drawing that the throughput figures share: forward, backward, sparse and context-parallel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from longca.core.units import format_length
from longca.report.look.style import INK, MUTED, RULE
from longca.report.panels import MASK, PANEL, draw_panels, in_panel_order
from longca.report.series import attention, labelled, points, rate_unit

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Canvas

    from longca.report.look.style import Style

ROW_IN = 0.24  # of a dot plot
RATE = ("tflops_per_device", "tflops_per_device_low", "tflops_per_device_high")


def rate_points(table: pd.DataFrame, kind: str, by: list[str], *, direction: str | None = None,
                sparse: bool | None = None) -> pd.DataFrame:
    """Throughput per device of what was tried, in the order of the panels.

    Args:
        by: columns beside those of the mask and the method.
        sparse: only block-sparse masks, or only the others.
    """
    named = labelled(table)
    tried = attention(named, kind, direction)
    if sparse is not None:
        tried = tried[(tried.mask_family == "block-sparse") == sparse]
    return in_panel_order(points(tried, [*MASK, "method", *by], *RATE, unit="TFLOP/s"), named)


def draw_rates(data: pd.DataFrame, style: Style, x: str = "seqlen", **options: Any) -> Canvas:
    """Panels in GFLOP/s or TFLOP/s, whichever has fewer digits; one panel of dots where x has one value only."""
    unit = rate_unit(data.value.max())
    scaled = data.assign(**{column: data[column] * unit.factor for column in ("value", "low", "high")})
    if scaled[x].nunique() == 1:
        return _draw_dots(scaled, style, unit=unit.name)
    return draw_panels(scaled, style, x=x, unit=unit.name, **({"x_text": format_length} | options))


def _draw_dots(data: pd.DataFrame, style: Style, *, unit: str) -> Canvas:
    """A dot plot: one row for each mask, since the horizontal axis would have a single value.

    Points as `longca.report.series.points` gives them, with columns `method` and perhaps `direction` (backward is hollow).
    """
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
    ax.set_gid(f"panel:{unit}")
    for position, (_, cells) in enumerate(rows):
        for cell in cells.itertuples():
            colour, hollow = style.colour(cell.method), both and cell.direction == "bwd"
            if cell.status != "ok":
                mark, = ax.plot(0, position, "x", color=colour, markersize=5, markeredgewidth=1.5, clip_on=False)
                style.mark(mark, cell.method, [cell.cell_ids])
                continue
            style.mark(ax.hlines(position, cell.low, cell.high, color=colour, linewidth=1.1, alpha=0.55), cell.method)
            mark, = ax.plot(cell.value, position, style.marker(cell.method), color=colour, markersize=5, markeredgewidth=1.1,
                            markerfacecolor="none" if hollow else colour, clip_on=False)
            style.mark(mark, cell.method, [cell.cell_ids])
    ax.set(xlim=(0, float(data.high.max()) * 1.05 if data.high.notna().any() else 1), ylim=(len(rows) - 0.5, -0.5))
    ax.set_yticks(range(len(rows)), names, color=INK[0])
    ax.grid(axis="y", color=RULE[0], linewidth=0.5, linestyle=(0, (1, 3)))
    ax.grid(axis="x", color=RULE[0], linewidth=0.7)
    ax.set_xlabel(unit, color=MUTED[0], fontsize=8, labelpad=4)
    style.legend(canvas, legend)
    return canvas
