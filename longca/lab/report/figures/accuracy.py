"""Errors relative to their budgets, one line for each method and direction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from longca.lab.report.contract import Figure
from longca.lab.report.look.dot_rows import more_lines_in
from longca.lab.report.look.style import BAD, INK, MUTED
from longca.lab.report.look.tags import rows_tag
from longca.lab.store.text import number, plural

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Canvas

    from longca.lab.report.look.style import Style

FLOOR = 1e-3  # of the budget: smaller ratios are drawn here
COLUMNS = [
    "method",
    "direction",
    "mask",
    "seqlen",
    "status",
    "error_tensor",
    "error",
    "error_budget",
    "budget_ratio",
    "cell_id",
]


class AccuracyFigure(Figure):
    label = "Accuracy"
    section = "accuracy"
    caption = (
        "Each dot is a cell: the error of its worst tensor divided by the error budget of its inputs, mask "
        "and dtype (float64 reference). Cells to the left of the line are correct. Cells to the right are "
        "incorrect, and their speed is not shown anywhere."
    )

    def data(self, table: pd.DataFrame) -> pd.DataFrame:
        checked = table[table.budget_ratio.notna() & ~table.is_control.astype(bool)]
        return checked.sort_values(
            ["method", "direction", "mask", "seqlen", "cell_id"],
            ascending=[True, False, True, True, True],
            kind="stable",
            ignore_index=True,
        )[COLUMNS]

    def title(self, data: pd.DataFrame) -> str:
        wrong = data[data.status == "incorrect"]
        right = data[data.status != "incorrect"]
        if not len(right):
            return f"No result is correct: {plural(len(wrong), 'cell')} beyond the budget"
        nearest = right.loc[right.budget_ratio.idxmax()]
        used = f"{number(100 * nearest.budget_ratio, 2)} % of its error budget"
        where = f"({nearest.method}, {nearest['mask']})"
        if not len(wrong):
            return f"All {len(data):,} checked cells are correct; the largest error uses {used} {where}"
        return (
            f"{plural(len(wrong), 'cell')} of {len(data):,} {'is' if len(wrong) == 1 else 'are'} wrong; "
            f"of the others none uses more than {used} {where}"
        )

    def draw(self, data: pd.DataFrame, style: Style) -> Canvas:
        lines = list(data.groupby(["method", "direction"], sort=False))
        names = style.wrapped(f"{method}  {direction}" for (method, direction), _ in lines)
        height = 0.75 + (0.27 + more_lines_in(names)) * len(lines)
        canvas = style.canvas(height)
        left = style.names_in(names)
        ax = canvas.add_axes(
            (left / style.width_in, 0.55 / height, 1 - (left + 0.2) / style.width_in, 1 - 0.7 / height)
        )
        style.clean(ax)
        ax.set_gid(rows_tag())
        ax.grid(visible=False, axis="y")
        ax.grid(axis="x", color=MUTED[0], alpha=0.2, linewidth=0.7)
        ratios = data.budget_ratio[np.isfinite(data.budget_ratio) & (data.budget_ratio > 0)].to_numpy(float)
        low = min(max(ratios.min(initial=0.1) / 1.5, FLOOR), 0.1)
        high = max(ratios.max(initial=2.0) * 1.5, 3.0)
        for position, ((method, _), cells) in enumerate(lines):
            cells = style.dots(cells)
            ratio = cells.budget_ratio.to_numpy(float).clip(low, high / 1.1)
            shift = 0.26 * np.sin(np.arange(len(ratio)) * 2.4)  # spread evenly and deterministically
            (dots,) = ax.plot(
                ratio,
                position + shift,
                style.marker(method),
                color=style.colour(method),
                markersize=3.4,
                alpha=0.7,
                markeredgewidth=0,
            )
            style.mark(dots, method, cells.cell_id)
        ax.axvline(1.0, color=BAD[0], linewidth=1.2)
        ax.annotate(
            "allowed",
            (1.0, 1.0),
            (-4, 2),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="right",
            fontsize=8,
            color=BAD[0],
        )
        ax.set(xscale="log", xlim=(low * 0.9, high), ylim=(len(lines) - 0.4, -0.6))
        ticks = [tick for tick in (0.001, 0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0) if low * 0.9 <= tick <= high]
        ax.set_xticks(ticks, [f"{tick:g}×" for tick in ticks])
        ax.minorticks_off()
        ax.set_yticks(range(len(lines)), names, color=INK[0])
        ax.set_xlabel("error over budget", color=MUTED[0], fontsize=8)
        return canvas
