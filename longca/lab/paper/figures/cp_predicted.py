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
    section = "cp"
    number = "Figure 6, predicted"
    order = 11
    needs_records = False
    predicted = True
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

        cells = [cell for cell in load() if cell.network_factor == 1]
        cells.sort(key=lambda cell: cell.direction != "fwd")
        return pd.DataFrame(
            [
                {
                    "mask": cell.mask,
                    "detail": DIRECTIONS[cell.direction],
                    "direction": cell.direction,
                    "strategy": cell.strategy,
                    "kernel": KERNEL,
                    "method": f"{cell.strategy}+{KERNEL}",
                    "world": cell.world,
                    "status": cell.status,
                    "reason": cell.reason,
                    "value": cell.tflops,
                    "low": cell.tflops_low,
                    "high": cell.tflops_high,
                    "unit": "predicted TFLOP/s",
                    "ms": cell.ms,
                    "low_ms": cell.low_ms,
                    "high_ms": cell.high_ms,
                    "draws": cell.draws,
                    "first_in": cell.first_in,
                    "cell_ids": "",
                }
                for cell in cells
            ]
        )

    def title(self, data: pd.DataFrame) -> str:
        import pandas as pd

        sentences = []
        for direction, word in DIRECTIONS.items():
            here = data.loc[
                (data["mask"] == MASK)
                & (data.direction == direction)
                & (data.world == MOST_OF_STUDY)
                & data.value.notna()
            ]
            ordered = here.sort_values("value", ascending=False, kind="stable")
            if len(ordered):
                best = ordered.iloc[0]
                worst = ordered.iloc[-1]
                often = (
                    f", first in {best.first_in:.0f} of {best.draws:.0f} draws"
                    if pd.notna(best.draws) and best.draws > 1
                    else ""
                )
                sentences.append(
                    f"{word} {best.strategy} with {number(best.value, 3)} TFLOP/s a GPU{often}, "
                    f"{number(best.value / worst.value)} "
                    f"times {worst.strategy}"
                )
        return (
            f"Predicted to be the quickest under causal documents on {plural(MOST_OF_STUDY, 'H100')}, in "
            f"the mean: {'; '.join(sentences)}"
        )

    def draw(self, data: pd.DataFrame, style: Style) -> Canvas:
        return draw_rates(data.drop(columns="direction"), style, "world", x_text=str, per_row=4)
