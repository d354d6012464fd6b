"""Bytes that USP sends between nodes, with its groups as released and as they should be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.cp.partition import RANKS_PER_NODE
from longca.lab.paper.analysis.usp_groups import (
    HEAD_RANKS,
    PLACEMENTS,
    TOKENS,
    finding,
    forward,
    span,
    usp_bytes,
)
from longca.lab.paper.contract import PaperFigure
from longca.lab.report.look import INK, STRATEGIES
from longca.lab.report.series import grouped
from longca.lab.store.text import format_bytes

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from longca.lab.report.look import Legend, Style

MIB = 1 << 20
PANEL_IN = 2.0
AXES = "MiB over ranks; pale: as released; full: as it should be"
WIDTH = 0.36  # of a bar; the distance of two numbers of ranks is 1
PARTS = {
    "heads_between": ("all-to-all, which nothing hides", STRATEGIES["ulysses"][0]),
    "kv_between": ("KV, sent beside kernels", STRATEGIES["ring_p2p"][0]),
}
LEGEND: Legend = [
    *((text, {"color": colour, "linestyle": "", "marker": "s"}) for text, colour in PARTS.values()),
    ("the busiest rank", {"color": INK[0], "linestyle": "", "marker": "_"}),
]


class UspGroups(PaperFigure):
    label = "Groups of USP"
    section = "released"
    number = "defect F12"
    order = 30
    needs_records = False
    caption = (
        f"Bytes that a rank sends to other nodes in one forward call under a full mask: {TOKENS // 1024}K tokens a rank, bf16, "  # noqa: E501
        f"{HEAD_RANKS} ranks a head group, {RANKS_PER_NODE} GPUs a node. Pale bars: groups as released, so that neighbours form "  # noqa: E501
        "rings and ranks of a head group are far apart. Full bars: neighbours divide heads, as USP means it. Bars are means over "  # noqa: E501
        "ranks, lines the busiest rank. They are counted from the plans that this project runs, transfer by transfer."  # noqa: E501
    )

    def data(self, table: pd.DataFrame) -> pd.DataFrame:
        return forward(usp_bytes())

    def title(self, data: pd.DataFrame) -> str:
        return finding(data)

    def effects(self, data: pd.DataFrame) -> dict[int, str]:
        exposed = data.loc[data.released_heads_between > 0]
        released, right = (span(exposed.loc[:, f"{name}_heads_between"], format_bytes) for name in PLACEMENTS)
        return {
            12: f"{finding(data)}. All-to-alls, which nothing hides, send {released} of these for each rank, and {right} with groups "  # noqa: E501
            "as they should be"
        }

    def draw(self, data: pd.DataFrame, style: Style) -> Canvas:
        panels = [(str(heads), rows) for (heads,), rows in grouped(data, ["heads"], sort=False)]
        canvas, axes = style.panels(
            [heads for heads, _ in panels],
            panel_in=PANEL_IN,
            title_lines=2,
            title_chars=len(AXES),
            legend=LEGEND,
        )
        for ax, (heads, rows) in zip(axes, panels, strict=True):
            style.title(ax, f"{heads} heads", AXES, 2)
            _panel(ax, rows)
        return canvas


def _panel(ax: Axes, rows: pd.DataFrame) -> None:
    for at, row in enumerate(rows.to_dict("records")):
        for side, name in zip((-1, 1), PLACEMENTS, strict=True):
            x = at + side * WIDTH * 0.56
            bottom = 0.0
            for part, (_, colour) in PARTS.items():
                ax.bar(
                    x,
                    row[f"{name}_{part}"] / MIB,
                    WIDTH,
                    bottom,
                    color=colour,
                    alpha=0.95 if side > 0 else 0.6,
                )
                bottom += row[f"{name}_{part}"] / MIB
            ax.hlines(
                row[f"{name}_between_busiest"] / MIB,
                x - WIDTH / 2,
                x + WIDTH / 2,
                color=INK[0],
                linewidth=1.3,
            )
    ax.set_xticks(range(len(rows)), [f"{world}" for world in rows.world])
