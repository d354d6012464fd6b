"""Throughput of strategies on many GPUs, as it is predicted: nothing of it was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.lab.advice.many_gpus import KERNEL, MOST_OF_STUDY, STRATEGIES, load, setting
from longca.lab.paper.contract import PaperFigure
from longca.lab.report.rates import draw_rates
from longca.lab.report.series import DIRECTIONS
from longca.lab.store.text import number, plural
from longca.lab.studies import DRAWS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Canvas

    from longca.lab.report.look import Style

MASK = "causal_document"  # of the finding


class CpPredicted(PaperFigure):
    label = "Strategies over many GPUs, predicted"
    section, number, order = "cp", "Figure 6, predicted", 11
    needs_records, predicted = False, True
    methods = tuple(f"{strategy}+{KERNEL}" for strategy in STRATEGIES)
    caption = (
        f"Predicted throughput of each GPU over the number of GPUs; nobody has measured it. {setting()}. "
        f"Under documents, a point is "
        f"the mean over {DRAWS} drawn sequences, up to {MOST_OF_STUDY} GPUs. Vertical lines are 90 % "
        f"intervals of a single call, of any "
        "of these sequences: residuals of held-out records of 2 and 4 GPUs, wider with each doubling of GPUs "
        "and twice as wide for a GPU "
        "without records, and with 0.6 to 1.25 times the assumed rate between nodes. What moves all "
        "strategies alike moves their "
        "intervals alike, so that intervals that overlap do not mean that the order is open. The study runs "
        "8 to 96 GPUs."
    )

    def data(self, table: pd.DataFrame) -> pd.DataFrame:
        import pandas as pd

        cells = [one for one in load() if one.network_factor == 1]
        cells.sort(key=lambda one: one.direction != "fwd")
        return pd.DataFrame(
            [
                {
                    "mask": one.mask,
                    "detail": DIRECTIONS[one.direction],
                    "direction": one.direction,
                    "strategy": one.strategy,
                    "kernel": KERNEL,
                    "method": f"{one.strategy}+{KERNEL}",
                    "world": one.world,
                    "status": one.status,
                    "reason": one.reason,
                    "value": one.tflops,
                    "low": one.tflops_low,
                    "high": one.tflops_high,
                    "unit": "predicted TFLOP/s",
                    "ms": one.ms,
                    "low_ms": one.low_ms,
                    "high_ms": one.high_ms,
                    "draws": one.draws,
                    "first_in": one.first_in,
                    "cell_ids": "",
                }
                for one in cells
            ]
        )

    def title(self, data: pd.DataFrame) -> str:
        import pandas as pd

        told = []
        for direction, word in DIRECTIONS.items():
            here = data.loc[
                (data["mask"] == MASK)
                & (data.direction == direction)
                & (data.world == MOST_OF_STUDY)
                & data.value.notna()
            ]
            ordered = here.sort_values("value", ascending=False, kind="stable")
            if len(ordered):
                best, worst = ordered.iloc[0], ordered.iloc[-1]
                often = (
                    f", first in {best.first_in:.0f} of {best.draws:.0f} draws"
                    if pd.notna(best.draws) and best.draws > 1
                    else ""
                )
                told.append(
                    f"{word} {best.strategy} with {number(best.value, 3)} TFLOP/s a GPU{often}, "
                    f"{number(best.value / worst.value)} "
                    f"times {worst.strategy}"
                )
        return (
            f"Predicted to be the quickest under causal documents on {plural(MOST_OF_STUDY, 'H100')}, in "
            f"the mean: {'; '.join(told)}"
        )

    def draw(self, data: pd.DataFrame, style: Style) -> Canvas:
        return draw_rates(data.drop(columns="direction"), style, "world", x_text=str, per_row=4)
