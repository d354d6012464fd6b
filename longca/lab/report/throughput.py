"""Throughput of dense kernels over length, one panel for each mask: the base of the figures of both
directions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from longca.lab.report.contract import Figure
from longca.lab.report.findings import at_largest, leaders_text, place_text, standings_of
from longca.lab.report.rates import OFF_THE_LINE, draw_rates, rate_points
from longca.lab.report.series import without_repeats

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Canvas

    from longca.lab.ranking import Standing
    from longca.lab.report.look.style import Style


class Throughput(Figure):
    """Median rates of one direction, one line for each kernel."""

    section = "dense"
    direction: ClassVar[str]  # fwd or bwd
    word: ClassVar[str]  # the direction at the beginning of the title
    caption = (
        "Throughput of visible pairs over sequence length: higher is better. FLOPs follow from the exact "
        "area of the mask, so work on hidden pairs is not counted. Points are medians, bars extend from the "
        "first to the third quartile (over all seeds if there are several). Masks are sorted from dense to "
        f"sparse, separately without and with documents. {OFF_THE_LINE}"
    )

    def data(self, table: pd.DataFrame) -> pd.DataFrame:
        return rate_points(table, "kernel", ["direction", "seqlen"], direction=self.direction, sparse=False)

    def title(self, data: pd.DataFrame) -> str:
        return f"{self.word}: {leaders_text(_judged(data), 'panel' if data.detail.any() else 'mask')}"

    def basis(self, data: pd.DataFrame) -> str:
        return place_text(_judged(data), "longest length")

    def draw(self, data: pd.DataFrame, style: Style) -> Canvas:
        return draw_rates(data, style)


def _judged(data: pd.DataFrame) -> dict[tuple[Any, ...], Standing]:
    chosen = at_largest(standings_of(without_repeats(data), ["mask_label", "setting", "seqlen"]))
    return {key: case for key, (_, case) in chosen.items()}
