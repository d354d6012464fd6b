"""Throughput under block-sparse masks against their density."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.core.units import format_length
from longca.report.claims import fastest, who_wins
from longca.report.contract import Figure
from longca.report.rates import RATE, draw_rates
from longca.report.series import DIRECTIONS, attention, join, labelled, points

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Canvas

    from longca.report.style import Style


class SparseThroughput(Figure):
    label = "Throughput, block-sparse"
    section = "sparse"
    caption = ("Throughput of the chosen blocks against the share of blocks that is chosen, at the longest length "
               "measured: higher is better. A kernel that works on every block falls in proportion to the density. "
               "Points are medians, bars reach from the first to the third quartile.")

    def data(self, table: pd.DataFrame) -> pd.DataFrame:
        tried = attention(labelled(table), "kernel")
        tried = tried[tried.mask_family == "block-sparse"]
        tried = tried[tried.seqlen == tried.groupby(["mask", "setting", "direction"]).seqlen.transform("max")]
        detail = [join(DIRECTIONS[direction], variant, format_length(seqlen), setting) for direction, variant, seqlen, setting
                  in zip(tried.direction, tried.mask_variant, tried.seqlen, tried.setting, strict=True)]
        tried = tried.assign(detail=detail, density=tried.mask_density_asked)
        found = points(tried, ["mask", "detail", "direction", "method", "seqlen", "density"], *RATE, unit="TFLOP/s")
        return found.sort_values(["mask", "direction", "detail", "method", "density"], ascending=[True, False, True, True, True],
                                 kind="stable", ignore_index=True)

    def title(self, data: pd.DataFrame) -> str:
        winners = fastest(data, ["mask", "detail"], x="density")
        return f"Block-sparse: {who_wins(winners, 'panel')}, each at its highest density"

    def draw(self, data: pd.DataFrame, style: Style) -> Canvas:
        return draw_rates(data.drop(columns="direction"), style, "density", x_text=lambda value: f"{value:g}", x_log=False,
                          per_row=4)
