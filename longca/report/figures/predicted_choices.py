"""The cost of choices: how much longer the method that each rule takes runs than the best one, one dot a setting."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from longca.report.contract import Figure
from longca.report.decide.predicted import choices, judged
from longca.report.look.style import INK, MUTED
from longca.report.series import labelled
from longca.store.text import percent, plural

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Canvas

    from longca.report.look.style import Style

ROW_IN = 0.36
SURE = 0.02  # two records of one plan differ by less, nineteen times in twenty: docs/results/h200/prediction.md
TICKS = (0, 1, 2, 5, 10, 20, 50, 100, 200)


class PredictedChoices(Figure):
    label = "Regret of choices"
    section = "predicted"
    order = 200
    caption = ("How much longer the chosen strategy ran than the quickest of its setting (mask, ranks, length, kernel, direction), one dot "
               "a setting; the tick is the mean. Further left is better, 0 is the best choice. \"predicted\" takes the strategy with the "
               "least predicted time; the other rows take one strategy always, where it ran. Only settings in which three strategies or "
               "more ran. The scale is linear to 1 %, then logarithmic.")

    def data(self, table: pd.DataFrame) -> pd.DataFrame:
        return choices(labelled(judged(table)))

    def title(self, data: pd.DataFrame) -> str:
        ours = data[data.rule == "predicted"]
        right = float((ours.regret <= np.maximum(ours.noise.astype(float), SURE)).mean())
        others = data[data.rule != "predicted"].groupby("rule").regret.mean().sort_values(kind="stable")
        beside = f"; {others.index[0]} costs {percent(float(others.iloc[0]))}" if len(others) else ""
        return (f"The predicted best is the best, or within noise of it, in {percent(right)} of {plural(len(ours), 'setting')} and costs "
                f"{percent(float(ours.regret.mean()))} in the mean{beside}")

    def draw(self, data: pd.DataFrame, style: Style) -> Canvas:
        rules = list(data.groupby("rule", sort=False).regret.mean().sort_values(kind="stable").index)
        rules.sort(key=lambda rule: rule != "predicted")
        left_in = style.names_in(rules)
        width_in, rows_in = min(style.width_in - left_in - 0.3, 6.5), ROW_IN * len(rules) + 0.1
        height_in = 0.15 + rows_in + 0.5
        canvas = style.canvas(height_in)
        ax = canvas.add_axes((left_in / style.width_in, 0.5 / height_in, width_in / style.width_in, rows_in / height_in))
        style.clean(ax)
        ax.grid(visible=False, axis="y")
        ax.grid(axis="x", color=MUTED[0], alpha=0.2, linewidth=0.7)
        for position, rule in enumerate(rules):
            of_rule = data[data.rule == rule]
            place = 0.26 * np.sin(np.arange(len(of_rule)) * 2.4)
            for method in dict.fromkeys(of_rule.method):
                here = (of_rule.method == method).to_numpy()
                dots, = ax.plot(100 * of_rule.regret.to_numpy(float)[here], (position + place)[here], style.marker(method),
                                color=style.colour(method), markersize=4, alpha=0.6, markeredgewidth=0, linestyle="", clip_on=False)
                style.mark(dots, method, of_rule.cell_id[here])
            ax.vlines(100 * float(of_rule.regret.mean()), position - 0.38, position + 0.38, color=INK[0], linewidth=1.4)
        ax.set_xscale("symlog", linthresh=1, linscale=0.5)
        top = max(float(data.regret.max()) * 130, 2.0)
        ax.set(xlim=(0, top), ylim=(len(rules) - 0.45, -0.55))
        ax.set_xticks(ticks := [tick for tick in TICKS if tick < top], [f"{tick:g} %" for tick in ticks])
        ax.minorticks_off()
        ax.set_yticks(range(len(rules)), rules, color=INK[0])
        ax.set_xlabel("longer than the quickest", color=MUTED[0], fontsize=8)
        return canvas
