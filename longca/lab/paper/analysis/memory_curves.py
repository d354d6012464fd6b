"""Memory of a call over length: the base of the dense and the block-sparse figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from longca.core import format_length
from longca.lab.paper.analysis.select import kernels, main_heads, of_one_device
from longca.lab.paper.contract import PaperFigure
from longca.lab.report import span_text, uncompared_text
from longca.lab.report.look import join
from longca.lab.report.panels import draw_panels
from longca.lab.report.series import DIRECTIONS, points
from longca.lab.store.text import format_bytes, number

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Canvas

    from longca.lab.report.look import Style

COLUMNS = {
    "absolute_peak_bytes": "in all",
    "peak_bytes": "above inputs",
}  # as the study has it; as a call costs
GIB = 1 << 30
POINT = ["mask", "detail", "device", "measure", "direction", "method", "seqlen"]
ORDER = {"mask": True, "direction": False, "detail": True, "method": True, "seqlen": True}  # forward first


class MemoryCurves(PaperFigure):
    """Peak memory of both passes, in all and above what lay there before the call."""

    section = "memory"
    sparse: ClassVar[bool]
    masks: ClassVar[tuple[str, ...]]
    densities: ClassVar[tuple[float, ...]] = ()
    caption = (
        'Most memory during a call, lower is better, on a logarithmic scale. "In all" counts inputs and '
        "outputs, as the study "
        'does; "above inputs" is what the call takes beyond what was resident before it. A cross is a call '
        "that ran out of "
        "memory. One GPU is shown, the study's where it ran."
    )

    def data(self, table: pd.DataFrame) -> pd.DataFrame:
        import pandas as pd

        rows = kernels(table, sparse=self.sparse, heads=None if self.sparse else main_heads(table))
        rows = of_one_device(rows.loc[rows["mask"].isin(self.masks)])
        if self.densities:
            rows = rows.loc[rows.mask_density_asked.isin(self.densities)]
            rows = rows.assign(mask=rows.mask_variant, detail=rows.heads)
        parts = []
        for column, word in COLUMNS.items():
            known = rows.loc[rows[column].notna() | (rows.status == "oom")]
            panel = [
                join(detail, DIRECTIONS[direction], word)
                for detail, direction in zip(known.detail, known.direction, strict=True)
            ]
            parts.append(points(known.assign(detail=panel, measure=word), POINT, column, unit="bytes"))
        found = pd.concat(parts, ignore_index=True)
        return found.sort_values(
            list(ORDER), ascending=list(ORDER.values()), kind="stable", ignore_index=True
        )

    def title(self, data: pd.DataFrame) -> str:
        here = data.loc[(data.measure == COLUMNS["absolute_peak_bytes"]) & data.value.notna()]
        if not len(here):
            return "No memory was measured"
        about = f"Memory of {'block-sparse' if self.sparse else 'dense'} kernels"
        groups = [rows for _, rows in here.groupby(["mask", "detail", "seqlen"], sort=False)]
        widest = max(groups, key=lambda rows: (len(rows), rows.seqlen.iloc[0])).sort_values(
            "value", kind="stable"
        )
        least = widest.iloc[0]
        most = widest.iloc[-1]
        failed = data[(data.status == "oom") & (data.measure == COLUMNS["absolute_peak_bytes"])]
        out = (
            f"; {', '.join(sorted(set(failed.method)))} ran out of memory, first at "
            f"{format_length(int(failed.seqlen.min()))}"
            if len(failed)
            else ""
        )
        if len(widest) == 1:
            sizes = span_text(here.value, format_bytes)
            return f"{about}: {uncompared_text(here.method)}; a call takes {sizes} in all{out}"
        panel = join(least["mask"], least.detail)
        sizes = f"{least.method} takes {format_bytes(least.value)}"
        more = f"{most.method} {number(most.value / least.value)} times as much"
        return f"{about} at {format_length(int(least.seqlen))} tokens ({panel}): {sizes}, {more}{out}"

    def draw(self, data: pd.DataFrame, style: Style) -> Canvas:
        scaled = data.assign(**{name: data[name] / GIB for name in ("value", "low", "high")}).drop(
            columns=["direction", "device"]
        )
        return draw_panels(
            scaled,
            style,
            x="seqlen",
            x_text=format_length,
            unit="GiB",
            y_log=True,
            per_row=4,
            lowest_is_best=True,
        )
