"""Rates over clocks, for inputs of several values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.core import format_length
from longca.lab.paper.contract import PaperFigure
from longca.lab.report.look import GROUND, MUTED, join
from longca.lab.report.questions.power import VALUES, power, values_finding
from longca.lab.report.series import DIRECTIONS, grouped

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from longca.lab.report.look import Legend, Style

MHZ = 1e3  # in a GHz
PANEL_IN = 2.0
LABELS = {
    "normal": ((5, -9), "left"),
    "signs": ((-5, 3), "right"),
    "constant": ((5, -9), "left"),
}  # of the quickest kernel's marks


class Power(PaperFigure):
    label = "Power limit"
    section = "beyond"
    number = "power and the values of inputs"
    order = 10
    caption = (
        "Across: the SM clock beside the samples, in GHz. Upwards: TFLOP/s. The same calls ran with q, k, v "
        "and the gradient of the output of four kinds: standard normal values, 1 % of them, their signs "
        "(±1), or 1 everywhere (forward alone). Filled: calls without a pause, after two seconds of them. "
        "Hollow: each call alone, as in all other figures. A line leads from 0 through each kernel's median "
        "rate for each GHz: points on it differ by their clock alone."
    )

    def data(self, table: pd.DataFrame) -> pd.DataFrame:
        return power(table)

    def title(self, data: pd.DataFrame) -> str:
        return values_finding(data)

    def draw(self, data: pd.DataFrame, style: Style) -> Canvas:
        panels = list(
            grouped(data.loc[data.status == "ok"], ["direction", "seqlen", "mask_label", "setting"])
        )
        panels.sort(key=lambda panel: (panel[0][0] == "bwd", *panel[0][1:]))
        legend: Legend = [
            *style.legend_of(data.assign(direction="fwd")),
            ("without a pause", {"color": MUTED[0], "linestyle": "", "marker": "o"}),
            ("alone", {"color": MUTED[0], "linestyle": "", "marker": "o", "markerfacecolor": "none"}),
        ]
        titles = [
            f"{direction} {seqlen} {mask} {setting}" for (direction, seqlen, mask, setting), _ in panels
        ]
        canvas, axes = style.panels(titles, per_row=4, panel_in=PANEL_IN, title_lines=2, legend=legend)
        clocks = data.clock_mhz.astype(float) / MHZ
        for ax, ((direction, seqlen, mask, setting), rows) in zip(axes, panels, strict=True):
            style.title(
                ax, f"{DIRECTIONS[direction]}, {format_length(int(seqlen))}", join(str(mask), str(setting)), 2
            )
            _panel(ax, style, rows)
            ax.set_xlim(float(clocks.min()) - 0.05, float(clocks.max()) + 0.08)
        return canvas


def _panel(ax: Axes, style: Style, rows: pd.DataFrame) -> None:
    for (method,), of_method in grouped(rows, ["method"]):
        name = str(method)
        clock = of_method.clock_mhz.astype(float) / MHZ
        colour = style.colour(name)
        rate = of_method.value.astype(float)
        for_each = float((rate / clock).median())
        ends = clock.min() - 0.04, clock.max() + 0.04
        ax.plot(ends, [for_each * end for end in ends], color=colour, linewidth=0.8, alpha=0.6)
        for (sustained,), marks in grouped(of_method, ["sustained"]):
            (line,) = ax.plot(
                marks.clock_mhz.astype(float) / MHZ,
                marks.value.astype(float),
                linestyle="",
                marker=style.marker(name),
                markersize=5,
                markeredgecolor=colour,
                markerfacecolor=colour if sustained else GROUND[0],
            )
            style.mark(line, name, marks.cell_ids)
    best = (
        rows.loc[rows.sustained.astype(bool) & rows.input_values.isin(list(LABELS))]
        .groupby("input_values")
        .value.idxmax()
    )
    for index in best:
        top = rows.loc[index]
        shift, side = LABELS[str(top.input_values)]
        ax.annotate(
            VALUES[str(top.input_values)],
            (float(top.clock_mhz) / MHZ, float(top.value)),
            shift,
            ha=side,
            textcoords="offset points",
            color=MUTED[0],
            fontsize=7,
        )
