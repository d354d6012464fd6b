"""Balance of context parallelism: the delay of the slowest rank against the median rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from longca.report.contract import Figure
from longca.report.look.style import INK, MUTED
from longca.store.text import percent

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Canvas

    from longca.report.look.style import Style

ORDER = ["method", "world", "direction", "mask", "seqlen", "cell_id"]
COLUMNS = ["method", "world", "direction", "mask", "seqlen", "straggler_percent", "slowest_rank", "single_percent", "moved_bytes",
           "formula_bytes", "above_shards_bytes", "permute_ms", "cell_id"]
ROW_IN = 0.3


class Ranks(Figure):
    label = "Stragglers"
    section = "cp"
    order = 200
    caption = ("By how much the slowest rank's median time exceeds that of the median rank, one dot a cell; the tick is the median over "
               "cells. 0 is a balanced cell, or one whose ranks wait for each other so often that none is ahead; from 1 % on the scale is "
               "logarithmic. The records also have bytes moved and by the formula, memory above the shards, and the share of what the "
               "kernel reaches alone.")

    def data(self, table: pd.DataFrame) -> pd.DataFrame:
        timed = table[(table.kind == "cp") & table.straggler_percent.notna()]
        return timed.sort_values(ORDER, kind="stable", ignore_index=True)[COLUMNS]

    def title(self, data: pd.DataFrame) -> str:
        typical = data.straggler_percent.median()
        groups = data.groupby(["method", "world"]).straggler_percent.median().sort_values(kind="stable")
        method, world = groups.index[-1]
        worst = f"; most of all with {method} on {world} ranks, {percent(groups.iloc[-1] / 100)}" if len(groups) > 1 else ""
        return f"The slowest rank is typically {percent(typical / 100)} behind the median rank{worst}"

    def draw(self, data: pd.DataFrame, style: Style) -> Canvas:
        groups = list(data.groupby(["method", "world"], sort=True))
        names = [f"{method} ×{world}" for (method, world), _ in groups]
        left_in = style.names_in(names)
        width_in, rows_in = min(style.width_in - left_in - 0.3, 6.5), ROW_IN * len(groups) + 0.1
        height_in = 0.15 + rows_in + 0.5
        canvas = style.canvas(height_in)
        ax = canvas.add_axes((left_in / style.width_in, 0.5 / height_in, width_in / style.width_in, rows_in / height_in))
        style.clean(ax)
        ax.grid(visible=False, axis="y")
        ax.grid(axis="x", color=MUTED[0], alpha=0.2, linewidth=0.7)
        for position, ((method, _), cells) in enumerate(groups):
            values = cells.straggler_percent.to_numpy(float)
            shift = 0.26 * np.sin(np.arange(len(values)) * 2.4)
            dots, = ax.plot(values, position + shift, style.marker(method), color=style.colour(method), markersize=4, alpha=0.6,
                            markeredgewidth=0, clip_on=False)
            style.mark(dots, method, cells.cell_id)
            ax.vlines(np.median(values), position - 0.38, position + 0.38, color=INK[0], linewidth=1.4)
        ax.set_xscale("symlog", linthresh=1, linscale=0.5)
        top = max(float(data.straggler_percent.max()) * 1.3, 2.0)
        ax.set(xlim=(0, top), ylim=(len(groups) - 0.45, -0.55))
        ax.set_xticks(ticks := [tick for tick in (0, 1, 10, 100, 1000) if tick < top], [f"{tick:g} %" for tick in ticks])
        ax.minorticks_off()
        ax.set_yticks(range(len(groups)), names, color=INK[0])
        ax.set_xlabel("slowest rank behind the median rank", color=MUTED[0], fontsize=8)
        return canvas
