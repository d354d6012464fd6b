"""Shared data and drawing of throughput figures: forward, backward, sparse and context-parallel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from longca.core import format_length
from longca.lab.report.look.dot_rows import marked_rows, marks
from longca.lab.report.look.labels import short_labels
from longca.lab.report.panels import MASK, PANEL, draw_panels, in_panel_order
from longca.lab.report.series import attention, labelled, points, rankable, rate_unit
from longca.lab.store.text import percent
from longca.lab.studies.samples import NOISY

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Canvas

    from longca.lab.report.look.style import Style

OFF_THE_LINE = (
    f"A point off its line is noisy: the middle half of its times spans more than {percent(NOISY)} of their "
    "median. A line is interrupted where calls with rests of the GPU follow calls without, which are not "
    "compared with each other."
)
RATE = ("tflops_per_device", "tflops_per_device_low", "tflops_per_device_high")


def rate_points(
    table: pd.DataFrame, kind: str, by: list[str], *, direction: str | None = None, sparse: bool | None = None
) -> pd.DataFrame:
    """Throughput per device of attempted cells, in the order of panels.

    Args:
        by: columns in addition to those of the mask and the method.
        sparse: only block-sparse masks, or only the others.
    """
    named = labelled(table)
    tried = rankable(attention(named, kind, direction, every=True))
    if sparse is not None:
        tried = tried[(tried.mask_family == "block-sparse") == sparse]
    return in_panel_order(points(tried, [*MASK, "method", *by], *RATE, unit="TFLOP/s"), named)


def draw_rates(data: pd.DataFrame, style: Style, x: str = "seqlen", **options: Any) -> Canvas:
    """Panels in GFLOP/s or TFLOP/s, whichever needs fewer digits; one panel of dots if x has a single
    value."""
    unit = rate_unit(data.value.max())
    scaled = data.assign(**{column: data[column] * unit.factor for column in ("value", "low", "high")})
    if scaled[x].nunique() == 1:
        return _draw_dots(scaled, style, unit=unit.name)
    options = {"x_text": format_length} | options
    return draw_panels(scaled, style, x=x, unit=unit.name, **options)


def _draw_dots(data: pd.DataFrame, style: Style, *, unit: str) -> Canvas:
    """A dot plot with one row for each mask, used if the horizontal axis would have a single value.

    Points come from `longca.lab.report.series.points`, with columns `method` and optionally `direction`
    (backward is hollow).
    """
    rows = list(data.groupby(PANEL, sort=False))
    both = "direction" in data and data.direction.nunique() > 1
    legend = style.legend_of(data, dots=True)
    short = short_labels(str(second) for (_, second), _ in rows)
    names = [", ".join(filter(None, (str(first), short[str(second)]))) for (first, second), _ in rows]
    canvas, ax = marked_rows(style, names, legend, unit)
    for position, (_, cells) in enumerate(rows):
        for cell in cells.itertuples():
            colour = style.colour(cell.method)
            if cell.status != "ok":
                (cross,) = ax.plot(
                    0, position, "x", color=colour, markersize=5, markeredgewidth=1.5, clip_on=False
                )
                style.mark(cross, cell.method, [cell.cell_ids])
                continue
            style.mark(
                ax.hlines(position, cell.low, cell.high, color=colour, linewidth=1.1, alpha=0.55), cell.method
            )
            marks(
                ax,
                style,
                position,
                np.array([cell.value]),
                cell.method,
                [cell.cell_ids],
                hollow=both and cell.direction == "bwd",
            )
    ax.set_xlim(0, float(data.high.max()) * 1.05 if data.high.notna().any() else 1)
    return canvas
