"""Throughput of strategies for each rank, over the number of ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.core import format_length
from longca.lab.paper.analysis.select import parallel, rates
from longca.lab.paper.contract import PaperFigure
from longca.lab.report import at_largest, standings_of
from longca.lab.report.look import join
from longca.lab.report.rates import draw_rates
from longca.lab.report.series import DIRECTIONS, without_repeats
from longca.lab.store.text import names, number, plural

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Canvas

    from longca.lab.ranking import Standing
    from longca.lab.report.look import Style

MASKS = ("full", "causal", "full_document", "causal_document")  # the study's own
DOCUMENTS = "full_document"  # the mask of the finding
TOKENS = 8192  # of each rank, as in the study


class CpDocuments(PaperFigure):
    label = "Strategies over ranks"
    section = "cp"
    number = "Figure 6"
    order = 10
    caption = (
        "Throughput of each GPU with 8K tokens on each, over the number of GPUs: higher is better, and a "
        "level line scales perfectly. A call lasts as long as its slowest rank. The study runs 8 to 96 "
        "GPUs; what is missing here has not been measured."
    )

    def data(self, table: pd.DataFrame) -> pd.DataFrame:
        rows = parallel(table)
        rows = rows.loc[
            rows["mask"].isin(MASKS)
            & (rows.seqlen == TOKENS * rows.world)
            & rows.kernel.isin(("band", "fa3"))
        ]
        rows = rows.assign(
            detail=[
                join(rest, DIRECTIONS[direction])
                for rest, direction in zip(rows.detail, rows.direction, strict=True)
            ]
        )
        curves = rates(rows, "mask", "detail", "direction", "device", "strategy", "kernel", "method", "world")
        order = {mask: index for index, mask in enumerate(MASKS)}
        return curves.sort_values(
            ["direction", "mask", "method", "world"],
            ascending=[False, True, True, True],
            kind="stable",
            ignore_index=True,
            key=lambda column: column.map(order) if column.name == "mask" else column,
        )

    def title(self, data: pd.DataFrame) -> str:
        here = without_repeats(
            data.loc[(data["mask"] == DOCUMENTS) & (data.direction == "fwd") & data.value.notna()]
        )
        if not len(here):
            return "No strategy ran documents"
        chosen = at_largest(standings_of(here, ["device", "world"]))
        return (
            f"Strategies under {DOCUMENTS}, forward: "
            f"{'; '.join(_told(device, *chosen[device,], len(chosen) > 1) for (device,) in sorted(chosen))}"
        )

    def draw(self, data: pd.DataFrame, style: Style) -> Canvas:
        return draw_rates(data.drop(columns="direction"), style, "world", x_text=str, per_row=4)


def _told(device: str, world: int, case: Standing, named: bool) -> str:
    """ "4 ranks × 8K: ulysses+fa3 reaches 512 TFLOP/s a GPU, tied with usp+fa3, 1.30 times ring_p2p+fa3". The
    rate is the first's alone: medians of others in the tie may be much lower."""
    last = case.entries[-1]
    tied = f", tied with {names(case.leaders[1:])}" if len(case.leaders) > 1 else ""
    who = f"{case.first.method} reaches {number(case.first.rate, 3)} TFLOP/s a GPU{tied}"
    rest = f", {number(1 / last.share)} times {last.method}" if last.method not in case.leaders else ""
    return (
        f"{f'on {device} ' if named else ''}{plural(int(world), 'rank')} × {format_length(TOKENS)}: "
        f"{who}{rest}"
    )
