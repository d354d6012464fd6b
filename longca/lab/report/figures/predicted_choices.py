"""The cost of choices: the extra time of each rule's choice over the best method, one dot for each
setting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.lab.report.contract import Figure
from longca.lab.report.decide.predicted import choices, judged
from longca.lab.report.look.dot_rows import dots, percent_scale, strips, tick
from longca.lab.report.series import labelled
from longca.lab.store.text import percent, plural

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Canvas

    from longca.lab.report.look.style import Style

ROW_IN = 0.36
TICKS = (0, 1, 2, 5, 10, 20, 50, 100, 200)


class PredictedChoices(Figure):
    label = "Regret of choices"
    section = "predicted"
    order = 200
    caption = (
        "Extra time of the chosen strategy over the fastest one of its setting (mask, ranks, length, kernel, "
        "direction), one dot for each setting; the tick is the mean. Further left is better, 0 is the best "
        'choice. "predicted" chooses the strategy with the lowest predicted time; each other row always '
        "chooses the same strategy, if it ran. Only settings with at least three strategies are included. "
        "The scale is linear to 1 %, then logarithmic."
    )

    def data(self, table: pd.DataFrame) -> pd.DataFrame:
        return choices(labelled(judged(table)))

    def title(self, data: pd.DataFrame) -> str:
        ours = data[data.rule == "predicted"]
        right = float(ours.tied.astype(bool).mean())
        others = data[data.rule != "predicted"].groupby("rule").regret.mean().sort_values(kind="stable")
        beside = f"; {others.index[0]} costs {percent(float(others.iloc[0]))}" if len(others) else ""
        return (
            f"The predicted best is the best, or tied with it, in {percent(right)} of "
            f"{plural(len(ours), 'setting')} and costs "
            f"{percent(float(ours.regret.mean()))} in the mean{beside}"
        )

    def draw(self, data: pd.DataFrame, style: Style) -> Canvas:
        rules = list(data.groupby("rule", sort=False).regret.mean().sort_values(kind="stable").index)
        rules.sort(key=lambda rule: rule != "predicted")
        canvas, ax = strips(style, rules, ROW_IN)
        for position, rule in enumerate(rules):
            of_rule = data[data.rule == rule]
            dots(ax, style, position, 100 * of_rule.regret.to_numpy(float), of_rule)
            tick(ax, position, 100 * float(of_rule.regret.mean()))
        percent_scale(ax, "longer than the quickest", (0, max(float(data.regret.max()) * 130, 2.0)), TICKS)
        return canvas
