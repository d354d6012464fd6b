"""Steadiness of times: spread by method, and trends over the order of calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from longca.lab.report.contract import Figure
from longca.lab.report.look.dot_rows import more_lines_in, name_strips, spread_over, tick
from longca.lab.report.look.style import INK, MUTED
from longca.lab.report.look.tags import rows_tag
from longca.lab.store.text import percent

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from longca.lab.report.look.style import Style

BESIDE_IN = 8.0  # width from which the two plots are side by side
COLUMNS = [
    "method",
    "direction",
    "mask",
    "seqlen",
    "num_samples",
    "time_ms_median",
    "noise",
    "samples_ms",
    "is_control",
    "cell_id",
]


class Noise(Figure):
    label = "Noise"
    section = "noise"
    caption = (
        "First plot: interquartile range over median, one dot for each cell; the tick is the method's "
        "median. Second plot: the samples in the order of measurement, relative to the median of their "
        "cell; the line is the median over cells, the band contains the middle half of them. A slope means "
        "that the device warms up or slows down."
    )

    def data(self, table: pd.DataFrame) -> pd.DataFrame:
        timed = table[(table.status == "ok") & (table.num_samples.fillna(0) > 1)]
        return timed.sort_values(
            ["method", "direction", "mask", "seqlen", "cell_id"], kind="stable", ignore_index=True
        )[COLUMNS]

    def title(self, data: pd.DataFrame) -> str:
        attention = data[~data.is_control.astype(bool)] if not data.is_control.all() else data
        typical = attention.noise.median()
        noisy = attention.groupby("method").noise.median().sort_values(kind="stable")
        worst = (
            f"; {noisy.index[-1]} is the least steady at {percent(noisy.iloc[-1])}"
            if noisy.iloc[-1] > 1.3 * typical
            else ""
        )
        return f"The middle half of a cell's times typically spans {percent(typical)} of their median{worst}"

    def draw(self, data: pd.DataFrame, style: Style) -> Canvas:
        methods = list(dict.fromkeys(data.method))
        names = style.wrapped(methods)
        bar_in = max((0.3 + more_lines_in(names)) * len(methods) + 0.1, 1.6)
        left = style.names_in(names)
        is_narrow = style.width_in < BESIDE_IN
        order_in = min(bar_in, 3.0)
        below_in = order_in + 0.6 if is_narrow else 0.0  # the second plot is below the first one
        height = 0.25 + bar_in + 0.5 + below_in
        canvas = style.canvas(height)
        boxes = (
            [
                (left, 0.5 + below_in, style.width_in - left - 0.2, bar_in),
                (0.6, 0.5, style.width_in - 0.8, order_in),
            ]
            if is_narrow
            else [(left, 0.5, 5.65 - left, bar_in), (6.5, 0.5, 4.3, order_in)]
        )
        spread, order = (
            canvas.add_axes((x / style.width_in, y / height, w / style.width_in, h / height))
            for x, y, w, h in boxes
        )
        spread.set_gid(rows_tag())
        self._spread(spread, data, names, style)
        self._order(order, data, style)
        return canvas

    def _spread(self, ax: Axes, data: pd.DataFrame, names: list[str], style: Style) -> None:
        name_strips(ax, style, names)
        high = max(float(data.noise.max()) * 1.3, 0.02)
        for position, method in enumerate(dict.fromkeys(data.method)):
            of_method = data[data.method == method]
            cells = style.dots(of_method)
            noise = cells.noise.to_numpy(float).clip(3e-4)
            colour = style.colour(method) if method in style.methods else MUTED[0]
            (dots,) = ax.plot(
                noise,
                spread_over(position, len(noise)),
                "o",
                color=colour,
                markersize=3,
                alpha=0.55,
                markeredgewidth=0,
            )
            style.mark(dots, method, cells.cell_id)
            tick(ax, position, float(np.median(of_method.noise.to_numpy(float).clip(3e-4))))
        ax.set(xscale="log", xlim=(2.5e-4, high))
        shown = [share for share in (0.001, 0.01, 0.1, 1.0) if share < high]
        ax.set_xticks(shown, [f"{100 * share:g} %" for share in shown])
        ax.minorticks_off()
        ax.set_xlabel("interquartile range over median", color=MUTED[0], fontsize=8)

    def _order(self, ax: Axes, data: pd.DataFrame, style: Style) -> None:
        style.clean(ax)
        longest = max(len(samples) for samples in data.samples_ms)
        steps = np.arange(1, longest + 1)
        table = np.full((len(data), longest), np.nan)
        for row, (samples, middle) in enumerate(zip(data.samples_ms, data.time_ms_median, strict=True)):
            table[row, : len(samples)] = np.asarray(samples) / middle
        low, middle, high = (np.nanpercentile(table, level, axis=0) for level in (25, 50, 75))
        ax.fill_between(steps, low, high, color=MUTED[0], alpha=0.25, linewidth=0)
        ax.plot(steps, middle, color=INK[0], linewidth=1.4)
        reach = max(float(np.max(np.abs(np.concatenate([low, high]) - 1))) * 1.25, 0.005)
        ax.set(xlim=(0.8, longest + 0.2), ylim=(1 - reach, 1 + reach))
        ticks: list[Any] = sorted({1, *np.linspace(1, longest, min(longest, 6)).round().astype(int).tolist()})
        ax.set_xticks(ticks, list(map(str, ticks)))
        ax.yaxis.set_major_formatter(
            lambda value, _: f"{100 * (value - 1):+.1f} %" if abs(value - 1) > 1e-9 else "median"
        )
        ax.set_xlabel("sample, in the order measured", color=MUTED[0], fontsize=8)
