"""Throughput under block-sparse masks over density."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from longca.core import format_length
from longca.lab.report.contract import Figure
from longca.lab.report.findings import at_largest, leaders_text, place_text, standings_of
from longca.lab.report.look.labels import join
from longca.lab.report.rates import OFF_THE_LINE, RATE, draw_rates
from longca.lab.report.series import DIRECTIONS, attention, labelled, points, rankable

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Canvas

    from longca.lab.ranking import Standing
    from longca.lab.report.look.style import Style


class SparseThroughput(Figure):
    label = "Throughput, block-sparse"
    section = "sparse"
    caption = (
        "Throughput of the visible blocks over their share, at the longest of the lengths with the most "
        "densities: higher is better. The throughput of a kernel that computes every block falls in "
        "proportion to the density. Points are medians, bars extend from the first to the third quartile. "
        f"{OFF_THE_LINE}"
    )

    def data(self, table: pd.DataFrame) -> pd.DataFrame:
        tried = rankable(attention(labelled(table), "kernel", every=True))
        tried = tried[tried.mask_family == "block-sparse"]
        tried = _at_its_length(tried)
        # a single length is in the title
        lengths = [format_length(seqlen) if tried.seqlen.nunique() > 1 else "" for seqlen in tried.seqlen]
        detail = [
            join(DIRECTIONS[direction], *rest)
            for direction, *rest in zip(
                tried.direction, tried.mask_variant, lengths, tried.setting, strict=True
            )
        ]
        tried = tried.assign(detail=detail, density=tried.mask_density_asked)
        rates = points(
            tried, ["mask", "detail", "direction", "method", "seqlen", "density"], *RATE, unit="TFLOP/s"
        )
        return rates.sort_values(
            ["mask", "direction", "detail", "method", "density"],
            ascending=[True, False, True, True, True],
            kind="stable",
            ignore_index=True,
        )

    def title(self, data: pd.DataFrame) -> str:
        at = f" at {format_length(int(data.seqlen.iloc[0]))}" if data.seqlen.nunique() == 1 else ""
        return f"Block-sparse{at}: {leaders_text(_judged(data), 'panel')}"

    def basis(self, data: pd.DataFrame) -> str:
        return place_text(_judged(data), "highest density")

    def draw(self, data: pd.DataFrame, style: Style) -> Canvas:
        return draw_rates(
            data.drop(columns="direction"),
            style,
            "density",
            x_text=lambda value: f"{value:g}",
            x_log=False,
            per_row=4,
        )


def _judged(data: pd.DataFrame) -> dict[tuple[Any, ...], Standing]:
    chosen = at_largest(standings_of(data, ["mask", "detail", "density"]))
    return {key: case for key, (_, case) in chosen.items()}


def _at_its_length(tried: pd.DataFrame) -> pd.DataFrame:
    """The cells of each panel at one length: the length with the most densities, the longest of several."""
    panel = ["mask", "mask_variant", "setting", "direction"]
    densities = tried.groupby([*panel, "seqlen"]).mask_density_asked.transform("nunique")
    fullest = tried[densities == densities.groupby([tried[column] for column in panel]).transform("max")]
    return fullest[fullest.seqlen == fullest.groupby(panel).seqlen.transform("max")]
