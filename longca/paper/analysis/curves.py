"""Throughput of dense kernels over length, a panel for each mask: the base of both directions' figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from longca.paper.analysis.select import devices_apart, kernels, main_heads, rates
from longca.paper.contract import PaperFigure
from longca.report.panels import MASK, in_panel_order
from longca.report.rates import draw_rates
from longca.store.text import percent, plural
from longca.store.view import NOISY

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Canvas

    from longca.report.look.style import Style

POINT = ["mask", "detail", "seqlen"]  # where kernels are compared
NEARLY_ALL = 0.9  # of the points: a kernel that lacks a few, since time was over, is still told beside the others


class Curves(PaperFigure):
    """Median rates of one direction over all lengths, a line for each kernel."""

    section = "dense"
    direction: ClassVar[str]
    word: ClassVar[str]
    caption = ("Throughput over sequence length, 64 query and 8 KV heads where these were measured, head dimension 128, bf16: higher is "
               "better. FLOPs count visible pairs only. Points are medians over all samples and seeds; bars reach from the first to the "
               "third quartile. A kernel that does not run a mask has no line there.")

    def data(self, table: pd.DataFrame) -> pd.DataFrame:
        rows = kernels(table, sparse=False, heads=main_heads(table), direction=self.direction)
        return in_panel_order(rates(rows, *MASK, "device", "method", "direction", "seqlen"), rows)

    def title(self, data: pd.DataFrame) -> str:
        return f"{self.word}: {most_often_fastest(data)}"

    def draw(self, data: pd.DataFrame, style: Style) -> Canvas:
        return draw_rates(data.drop(columns="direction"), style)


def most_often_fastest(data: pd.DataFrame) -> str:
    """The kernel that is the fastest most often, and the one that loses least of those that have nearly all points; on each device.

    "fa3 is the fastest at 40 of 108 points of mask and length; of 4 kernels with nine tenths of them or more, band loses least, at its
    worst 79 % of the fastest". A point whose samples scatter is no kernel's worst: it tells of what delayed it.
    """
    if devices_apart(data):
        return "; ".join(f"on {device} {most_often_fastest(rows)}" for device, rows in data.groupby("device"))
    ok = data.loc[data.value.notna()].copy()
    ok["best"] = ok.groupby(POINT).value.transform("max")
    rivals = ok.groupby(POINT).method.transform("nunique")
    ok = ok.loc[rivals > 1]
    if not len(ok):
        return "no two kernels ran the same cells"
    total = ok.groupby(POINT).ngroups
    wins = ok[ok.value == ok.best].method.value_counts()
    shares = ok.assign(share=(ok.value / ok.best).where(ok.noise <= NOISY)).groupby("method").share.agg(["min", "size"])
    first, count = str(wins.index[0]), int(wins.iloc[0])
    sentence = f"{first} is the fastest at {count} of {plural(total, 'point')} of mask and length"
    complete = shares["min"][shares["size"] >= NEARLY_ALL * total].dropna()
    if len(complete):
        worst = f"at its worst {percent(float(np.max(complete)))} of the fastest"
        sentence += (f"; of {len(complete)} kernels with nine tenths of them or more, {complete.idxmax()} loses least, {worst}"
                     if len(complete) > 1 else f"; only {complete.index[0]} has nine tenths of them or more, {worst}")
    return sentence
