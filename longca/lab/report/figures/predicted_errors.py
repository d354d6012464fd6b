"""Errors of predictions: measured over predicted time, one dot for each cell, one row for each strategy and
number of ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from longca.lab.report.contract import Figure
from longca.lab.report.decide.predicted import judged
from longca.lab.report.look.dot_rows import deviation_scale, dots, strips, tick
from longca.lab.report.look.style import INK, MUTED
from longca.lab.store.text import percent, plural

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Canvas

    from longca.lab.report.look.style import Style

COLUMNS = [
    "strategy",
    "method",
    "world",
    "direction",
    "mask",
    "seqlen",
    "status",
    "time_ms_median",
    "predicted_ms",
    "predicted_low_ms",
    "predicted_high_ms",
    "error",
    "inside",
    "cell_id",
]
ORDER = ["strategy", "world", "method", "direction", "mask", "seqlen", "cell_id"]
ROW_IN = 0.36


class PredictedErrors(Figure):
    label = "Errors of predictions"
    section = "predicted"
    caption = (
        "Measured time of a call relative to the prediction of longca advise for its plan, one dot for each "
        "cell; calls left of 0 were faster. The tick is the median, the grey bar the interval that should "
        "contain 90 % of the cells. Kernels are fitted on records of one GPU, messages and intervals on the "
        "project's records of several; docs/results/h200/prediction.md has held-out errors. Calls of earlier "
        "kernels of band are excluded. The scale is linear to 10 %, then logarithmic."
    )

    def data(self, table: pd.DataFrame) -> pd.DataFrame:
        predicted = judged(table)
        return predicted.sort_values(ORDER, kind="stable", ignore_index=True)[COLUMNS]

    def title(self, data: pd.DataFrame) -> str:
        size = data.error.abs().astype(float)
        typical, most, inside = (
            percent(float(value))
            for value in (size.median(), size.quantile(0.95), data.inside.astype(float).mean())
        )
        return (
            f"Predicted times of {plural(len(data), 'cell')} are off by {typical} in the median, 95 % of "
            f"them by less than {most}; {inside} lie in their interval"
        )

    def draw(self, data: pd.DataFrame, style: Style) -> Canvas:
        groups = list(data.groupby(["strategy", "world"], sort=True))
        names = [f"{strategy} ×{world}" for (strategy, world), _ in groups]
        canvas, ax = strips(style, names, ROW_IN)
        for position, (_, cells) in enumerate(groups):
            predicted = cells.predicted_ms.astype(float)
            low, high = (
                100 * float((cells[name].astype(float) / predicted).median() - 1)
                for name in ("predicted_low_ms", "predicted_high_ms")
            )
            ax.barh(position, high - low, 0.8, low, color=MUTED[0], alpha=0.14, linewidth=0)
            values = 100 * cells.error.to_numpy(float)
            dots(ax, style, position, values, cells)
            tick(ax, position, float(np.median(values)))
        ax.axvline(0, color=INK[0], linewidth=0.8)
        deviation_scale(ax, "measured time beside the predicted one", 100 * data.error.astype(float))
        return canvas
