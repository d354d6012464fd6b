"""Balance of context parallelism: the delay of the slowest rank relative to the median rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from longca.lab.report.contract import Figure
from longca.lab.report.look.dot_rows import dots, percent_scale, strips, tick
from longca.lab.store.text import percent

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Canvas

    from longca.lab.report.look.style import Style

ORDER = ["method", "world", "direction", "mask", "seqlen", "cell_id"]
COLUMNS = [
    "method",
    "world",
    "direction",
    "mask",
    "seqlen",
    "straggler_percent",
    "slowest_rank",
    "single_percent",
    "moved_bytes",
    "formula_bytes",
    "above_shards_bytes",
    "permute_ms",
    "cell_id",
]
ROW_IN = 0.3
TICKS = (0, 1, 10, 100, 1000)


class Ranks(Figure):
    label = "Stragglers"
    section = "cp"
    order = 200
    caption = (
        "Delay of the slowest rank's median time relative to that of the median rank, one dot for each cell; "
        "the tick is the median over cells. 0 is a balanced cell, or one whose ranks synchronise so often "
        "that none is ahead; above 1 % the scale is logarithmic. The records also have moved bytes and "
        "formula bytes, memory above the shards, and the share of the kernel's single-GPU rate."
    )

    def data(self, table: pd.DataFrame) -> pd.DataFrame:
        timed = table[(table.kind == "cp") & table.straggler_percent.notna()]
        return timed.sort_values(ORDER, kind="stable", ignore_index=True)[COLUMNS]

    def title(self, data: pd.DataFrame) -> str:
        typical = data.straggler_percent.median()
        groups = data.groupby(["method", "world"]).straggler_percent.median().sort_values(kind="stable")
        method, world = groups.index[-1]
        worst = (
            f"; most of all with {method} on {world} ranks, {percent(groups.iloc[-1] / 100)}"
            if len(groups) > 1
            else ""
        )
        return f"The slowest rank is typically {percent(typical / 100)} behind the median rank{worst}"

    def draw(self, data: pd.DataFrame, style: Style) -> Canvas:
        groups = list(data.groupby(["method", "world"], sort=True))
        names = [f"{method} ×{world}" for (method, world), _ in groups]
        canvas, ax = strips(style, names, ROW_IN)
        for position, (_, cells) in enumerate(groups):
            values = cells.straggler_percent.to_numpy(float)
            dots(ax, style, position, values, cells)
            tick(ax, position, float(np.median(values)))
        percent_scale(
            ax,
            "slowest rank behind the median rank",
            (0, max(float(data.straggler_percent.max()) * 1.3, 2.0)),
            TICKS,
        )
        return canvas
