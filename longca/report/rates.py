"""Throughput figures: what the forward, backward, sparse and context-parallel ones share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from longca.core.units import format_length
from longca.report.dots import draw_dots
from longca.report.panels import MASK, draw_panels, in_panel_order
from longca.report.series import attention, labelled, points, rate_unit

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Canvas

    from longca.report.style import Style

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
        return draw_dots(scaled, style, unit=unit.name)
    return draw_panels(scaled, style, x=x, unit=unit.name, **({"x_text": format_length} | options))
