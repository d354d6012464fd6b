"""Throughput of dense kernels at 8K tokens under every mask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.lab.paper.analysis.curves import most_often_fastest
from longca.lab.paper.analysis.select import kernels, main_heads, rates
from longca.lab.paper.contract import PaperFigure
from longca.lab.report.panels import MASK, in_panel_order
from longca.lab.report.rates import draw_rates

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Canvas

    from longca.lab.report.look import Style

SEQLEN = 8192


class Dense8K(PaperFigure):
    label = "Dense kernels at 8K, forward"
    section = "dense"
    number = "Figure 3"
    order = 10
    caption = (
        "Forward throughput at 8K tokens, 64 query and 8 KV heads where these were measured. Points are "
        "medians; bars reach from the first to the third quartile."
    )

    def data(self, table: pd.DataFrame) -> pd.DataFrame:
        rows = kernels(table, sparse=False, heads=main_heads(table), direction="fwd")
        rows = rows.loc[rows.seqlen == SEQLEN]
        return in_panel_order(rates(rows, *MASK, "device", "method", "seqlen"), rows)

    def title(self, data: pd.DataFrame) -> str:
        return f"Dense kernels at 8K, forward: {most_often_fastest(data)}"

    def draw(self, data: pd.DataFrame, style: Style) -> Canvas:
        return draw_rates(data, style)
