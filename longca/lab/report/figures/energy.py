"""Energy per token: one panel for each direction, one row for each setting, one mark for each method."""

from __future__ import annotations

from math import ceil, floor, log10
from typing import TYPE_CHECKING, Any

from longca.core import format_length
from longca.lab.report.contract import Figure
from longca.lab.report.findings import span_text, uncompared_text
from longca.lab.report.look.dot_rows import marked_rows, marks
from longca.lab.report.look.labels import join
from longca.lab.report.series import DIRECTIONS, attention, labelled, mask_order
from longca.lab.store.text import number

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Canvas

    from longca.lab.report.look.style import Style

PLACE = ["kind", "setting", "world", "seqlen", "input_values", "sustained", "mask_label", "direction"]
COLUMNS = [
    "place",
    *PLACE,
    "method",
    "status",
    "joules_per_token",
    "power_w_median",
    "time_ms_median",
    "cell_id",
]
MOST_ROWS = 40  # rows: the settings with the most methods
MARGIN = 1.15  # factor of margin below the minimum and above the maximum
SHOWN_FROM = 2  # methods of a setting, since a single one has no comparison


class Energy(Figure):
    label = "Energy for a token"
    section = "memory"
    order = 200
    caption = (
        "Joules of all ranks for each token: the median power of rank 0 times ranks and time, divided by the "
        "tokens of the sequence. Further left is better. Filled marks are forward, hollow ones backward. "
        "Only calls of at least 160 ms and calls without pauses are shown: a GPU's power reading is a mean "
        "over a second, which shorter separate calls do not fill. Settings in which one method is faster "
        "than that are excluded."
    )

    def data(self, table: pd.DataFrame) -> pd.DataFrame:
        import pandas as pd

        named = labelled(table)
        tried = pd.concat([attention(named, "cp"), attention(named, "kernel")])
        timed = tried[tried.status == "ok"]
        whole = (
            timed.joules_per_token.notna()
            .groupby([timed[name] for name in PLACE], sort=False)
            .transform("all")
        )
        known = timed[whole.astype(bool)]
        if not len(known):
            return pd.DataFrame(columns=COLUMNS)
        several = known.groupby(PLACE, sort=False).method.transform("nunique")
        kept = known[several >= SHOWN_FROM] if (several >= SHOWN_FROM).any() else known
        order = {label: index for index, label in enumerate(mask_order(table=named))}
        placed = kept.assign(
            place=[_place(row) for row in kept.itertuples()], mask_place=kept.mask_label.map(order)
        )
        most = (
            placed.groupby("place", sort=False)
            .method.nunique()
            .sort_values(ascending=False, kind="stable")
            .index[:MOST_ROWS]
        )
        return placed[placed.place.isin(set(most))].sort_values(
            ["kind", "setting", "world", "seqlen", "mask_place", "direction", "method"],
            kind="stable",
            ignore_index=True,
        )[COLUMNS]

    def title(self, data: pd.DataFrame) -> str:
        ratios = data.groupby("place", sort=False).joules_per_token.agg(
            lambda values: values.max() / values.min()
        )
        least = data.loc[data.groupby("place", sort=False).joules_per_token.idxmin()]
        counts = least.method.value_counts()
        method = counts.index[0]
        won = int(counts.iloc[0])
        if (data.groupby("place").method.nunique() < 2).all():
            span = span_text(data.joules_per_token * 1e3)
            return f"Energy: {uncompared_text(data.method)}; a token takes {span} mJ"
        return (
            f"Energy: {method} spends the least on a token in {won} of {len(least)} settings; the most that "
            f"a method needs is {number(float(ratios.median()))} times the least in the median setting, "
            f"{number(float(ratios.max()))} at most"
        )

    def draw(self, data: pd.DataFrame, style: Style) -> Canvas:
        rows = list(data.groupby("place", sort=False))
        legend = style.legend_of(data, dots=True)
        canvas, ax = marked_rows(style, [str(name) for name, _ in rows], legend, "mJ a token")
        for position, (_, cells) in enumerate(rows):
            for (method, direction), of_method in cells.groupby(["method", "direction"], sort=False):
                marks(
                    ax,
                    style,
                    position,
                    of_method.joules_per_token.to_numpy(float) * 1e3,
                    method,
                    of_method.cell_id,
                    hollow=direction == "bwd",
                )
        ax.set_xscale("log")
        low = float(data.joules_per_token.min()) * 1e3
        high = float(data.joules_per_token.max()) * 1e3
        ticks = [
            digit * 10.0**power
            for power in range(floor(log10(low)), ceil(log10(high)) + 1)
            for digit in (1, 2, 5)
        ]
        ax.set_xlim(low / MARGIN, high * MARGIN)
        ax.set_xticks(
            inside := [tick for tick in ticks if low / MARGIN <= tick <= high * MARGIN],
            [number(tick) for tick in inside],
        )
        ax.minorticks_off()
        return canvas


def _place(row: Any) -> str:
    """The name of a row: "causal · 2 × 32K · backward"."""
    world = int(row.world)
    seqlen = int(row.seqlen)
    size = f"{world} × {format_length(seqlen // world)}" if world > 1 else format_length(seqlen)
    values = "" if row.input_values == "normal" else f"values: {row.input_values}"
    return join(
        row.mask_label,
        size,
        row.setting,
        DIRECTIONS[row.direction],
        values,
        "no pause" if row.sustained else "",
    )
