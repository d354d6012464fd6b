"""Throughput of dense kernels over length, a panel for each mask: the base of both directions' figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from longca.lab.paper.analysis.select import devices_apart, kernels, main_heads, rates
from longca.lab.paper.contract import PaperFigure
from longca.lab.ranking import num_open, tallies
from longca.lab.ranking.sentences import protocols_of, rivals_text, worst_text
from longca.lab.report import standings_of
from longca.lab.report.panels import MASK, in_panel_order
from longca.lab.report.rates import OFF_THE_LINE, draw_rates
from longca.lab.report.series import without_repeats
from longca.lab.store.text import plural

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Canvas

    from longca.lab.report.look import Style

POINT = ["mask", "detail", "seqlen"]  # where kernels are compared
# of the points: a kernel that lacks a few, since time was over, is still told beside the others
NEARLY_ALL = 0.9


class Curves(PaperFigure):
    """Median rates of one direction over all lengths, a line for each kernel."""

    section = "dense"
    direction: ClassVar[str]
    subject: ClassVar[str]
    """of the finding, at its beginning: what is compared"""
    points_of: ClassVar[str] = "mask and length"
    """what a point of the finding is"""
    caption = (
        "Throughput over sequence length, 64 query and 8 KV heads where these were measured, head dimension "
        "128, bf16: higher is better. FLOPs count visible pairs only. Points are medians over all samples "
        "and seeds; bars reach from the first to the third quartile. A kernel that does not run a mask has "
        f"no line there. {OFF_THE_LINE}"
    )

    def data(self, table: pd.DataFrame) -> pd.DataFrame:
        rows = kernels(table, sparse=False, heads=main_heads(table), direction=self.direction)
        return in_panel_order(rates(rows, *MASK, "device", "method", "direction", "seqlen"), rows)

    def title(self, data: pd.DataFrame) -> str:
        return f"{self.subject}: {most_often_fastest(data, self.points_of)}"

    def draw(self, data: pd.DataFrame, style: Style) -> Canvas:
        return draw_rates(data.drop(columns="direction"), style)


def most_often_fastest(data: pd.DataFrame, points_of: str = "mask and length") -> str:
    """The kernel that leads most often, and the one that loses least of those that have nearly all points; on
    each device.

    "fa3 leads alone at 40 of 108 points of mask and length, against 4 to 12 others; of the 4 kernels with
    nine tenths of these points or more, band loses least: at its worst it reaches 79 % of the best". Masks in
    the definition of the released code do not count where the others do: few kernels were asked for them.

    Args:
        points_of: what a point is, as "mask and length".
    """
    if devices_apart(data):
        of_devices = data.groupby("device")
        return "; ".join(f"on {device} {most_often_fastest(rows, points_of)}" for device, rows in of_devices)
    cases = standings_of(without_repeats(data), POINT)
    compared = {key: case for key, case in cases.items() if case.is_compared}
    if not compared:
        return "no two kernels ran the same cells"
    counts = tallies(compared)
    total = len(compared)
    first = min(counts, key=lambda tally: (-tally.num_clear, -tally.num_leading, -tally.mean, tally.method))
    ties = num_open(compared)
    points = f"{plural(total, 'point')} of {points_of}"
    sentence = (
        f"{first.method} leads alone at {first.num_clear} of {points}"
        if first.num_clear
        else f"no kernel leads alone at any of {points}"
    )
    sentence += f", {rivals_text(compared)}"
    sentence += f"; no kernel leads alone at {ties} of them" if ties and first.num_clear else ""
    protocols = protocols_of(compared)
    sentence += f"; {protocols}" if protocols else ""
    complete = [tally for tally in counts if tally.num_cases >= NEARLY_ALL * total and tally.worst]
    if complete:
        best = max(complete, key=lambda tally: tally.worst.share if tally.worst else 0.0)
        assert best.worst
        worst = f"at its worst it reaches {worst_text(best.worst)} of the best"
        sentence += (
            f"; of the {len(complete)} kernels with nine tenths of these points or more, {best.method} loses "
            f"least: {worst}"
            if len(complete) > 1
            else f"; {best.method} alone has nine tenths of these points or more: {worst}"
        )
    return sentence
