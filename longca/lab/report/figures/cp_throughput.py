"""Throughput of context parallelism for each rank, over ranks or length."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.core import format_length
from longca.lab.ranking.sentences import basis_text
from longca.lab.report.contract import Figure
from longca.lab.report.findings import leaders_text, standings_of
from longca.lab.report.look.labels import join
from longca.lab.report.rates import OFF_THE_LINE, draw_rates, rate_points
from longca.lab.report.series import rate_unit

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Canvas

    from longca.lab.report.look.style import Style

CASE = ("mask_label", "setting", "direction", "world", "seqlen")


class ContextParallelThroughput(Figure):
    label = "Throughput of context parallelism"
    section = "cp"
    caption = (
        "Throughput for each rank: higher is better, and level lines mean perfect scaling. A call lasts as "
        "long as its slowest rank. The horizontal axis is the number of ranks, at constant tokens per rank, "
        "if several numbers were measured; otherwise it is the total sequence length. Solid lines and filled "
        "marks are forward, dashed lines and hollow marks backward; bars extend from the first to the third "
        f"quartile. {OFF_THE_LINE}"
    )

    def data(self, table: pd.DataFrame) -> pd.DataFrame:
        return rate_points(table, "cp", ["direction", "world", "seqlen"])

    def title(self, data: pd.DataFrame) -> str:
        best = data.loc[data.value.idxmax()] if data.value.notna().any() else None
        if best is None:
            return "Context parallelism: nothing could be timed"
        standings = standings_of(data, CASE)
        if not any(case.is_compared for case in standings.values()):
            rate = rate_unit(best.value).text(best.value)
            return (
                f"Context parallelism: {best.method} reaches up to {rate} for each of {best.world} "
                f"ranks; no other ran the same cells"
            )
        return f"Context parallelism: {leaders_text(standings, 'case')}"

    def basis(self, data: pd.DataFrame) -> str:
        basis = basis_text(standings_of(data, CASE))
        return f"a case is a mask, ranks, a length and a direction; {basis}" if basis else ""

    def draw(self, data: pd.DataFrame, style: Style) -> Canvas:
        if data.world.nunique() > 1:
            return draw_rates(_by_tokens(data), style, "world", x_text=str)
        return draw_rates(data, style, "seqlen", x_text=format_length)


def _by_tokens(data: pd.DataFrame) -> pd.DataFrame:
    """One panel for each mask and number of tokens per rank, or of the whole sequence if tokens per rank
    differ for each number of ranks."""
    tokens = data.seqlen // data.world
    what = "a rank"
    if not (data.groupby(tokens).world.nunique() > 1).any():
        tokens = data.seqlen
        what = "in all"
    if tokens.nunique() == 1:
        return data
    detail = [
        join(old, f"{format_length(int(count))} {what}")
        for old, count in zip(data.detail, tokens, strict=True)
    ]
    # panels of a mask are adjacent
    places = {mask: index for index, mask in enumerate(dict.fromkeys(data.mask_label))}
    order = data.assign(detail=detail, tokens=tokens, place=data.mask_label.map(places))
    return order.sort_values(["place", "setting", "tokens"], kind="stable", ignore_index=True)
