"""Dependence of a strategy's rate on the sampled documents: each draw relative to the median draw of its
setting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.lab.report.contract import Figure
from longca.lab.report.look.dot_rows import deviation_scale, dots, strips, tick
from longca.lab.store.table import is_ranked
from longca.lab.store.text import number, plural

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Canvas

    from longca.lab.report.look.style import Style

SETTING = ["method", "world", "mask", "seqlen", "num_q_heads", "num_kv_heads", "direction"]
COLUMNS = [*SETTING, "seed", "tflops_per_device", "of_median_percent", "varies", "cell_id"]
FEWEST = 5  # draws of a setting
ROW_IN = 0.36


class CpDraws(Figure):
    label = "Draws of documents"
    section = "cp"
    order = 150
    caption = (
        "TFLOP/s of one draw of documents relative to the median draw of its setting, one dot for each draw; "
        "all masks, lengths and directions with at least five draws. A strategy with close dots balances any "
        "documents well. The amount of work of a draw does not matter: rates count the visible pairs of its "
        "mask. The scale is linear to 10 %, then logarithmic."
    )

    def data(self, table: pd.DataFrame) -> pd.DataFrame:
        timed = (
            (table.kind == "cp") & (table.status == "ok") & is_ranked(table) & table.tflops_per_device.notna()
        )
        rows = table.loc[timed, [*SETTING, "seed", "tflops_per_device", "cell_id"]].astype(
            {"tflops_per_device": float}
        )
        groups = rows.groupby(SETTING)
        rates = groups.tflops_per_device
        rows = rows.assign(
            of_median_percent=100 * (rows.tflops_per_device / rates.transform("median") - 1),
            varies=rates.transform("max") / rates.transform("min"),
        )
        return rows[groups.seed.transform("nunique") >= FEWEST].sort_values(
            [*SETTING, "seed"], kind="stable", ignore_index=True
        )[COLUMNS]

    def title(self, data: pd.DataFrame) -> str:
        varies = data.groupby("method").varies.median().sort_values(kind="stable")
        draws = plural(int(data.groupby(SETTING).seed.nunique().max()), "draw")
        text = (
            f"Over {draws} of documents the rate of {varies.index[-1]} varies {number(varies.iloc[-1])} times"
        )
        return (
            f"{text}, that of {varies.index[0]} {number(varies.iloc[0])} times" if len(varies) > 1 else text
        )

    def draw(self, data: pd.DataFrame, style: Style) -> Canvas:
        groups = list(data.groupby(["method", "world"], sort=True))
        canvas, ax = strips(style, [f"{method} ×{world}" for (method, world), _ in groups], ROW_IN)
        for position, (_, cells) in enumerate(groups):
            values = cells.of_median_percent.to_numpy(float)
            dots(ax, style, position, values, cells)
            tick(ax, position, 0.0)
        deviation_scale(ax, "rate beside that of the middle draw", data.of_median_percent)
        return canvas
