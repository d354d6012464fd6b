"""Memory of a call over length, one panel for each mask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.core import format_length
from longca.lab.report.contract import Figure
from longca.lab.report.findings import span_text, uncompared_text
from longca.lab.report.look.labels import join
from longca.lab.report.panels import MASK, draw_panels, in_panel_order
from longca.lab.report.series import DIRECTIONS, attention, labelled, points
from longca.lab.store.text import format_bytes, number

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Canvas

    from longca.lab.report.look.style import Style

UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "bytes"))


class PeakMemory(Figure):
    label = "Peak memory"
    section = "memory"
    caption = (
        "Peak memory of one call above the memory resident before it (inputs, outputs of earlier calls): "
        "lower is better. Solid lines and filled marks are forward, dashed lines and hollow marks backward. "
        "On a GPU the allocator counts bytes; on a CPU the resident set is sampled, which misses short "
        "peaks and reused memory."
    )

    def data(self, table: pd.DataFrame) -> pd.DataFrame:
        named = labelled(table)
        tried = attention(named, "kernel")
        tried = tried[tried.peak_bytes.notna() | (tried.status != "ok")]
        return in_panel_order(
            points(tried, [*MASK, "method", "direction", "seqlen"], "peak_bytes", unit="bytes"), named
        )

    def title(self, data: pd.DataFrame) -> str:
        measured = data[data.value.notna()]
        if not len(measured):
            return "Memory: nothing could be measured in any of the calls"
        several = measured.groupby(["mask", "detail", "direction", "seqlen"]).method.transform("nunique") > 1
        if not several.any():
            sizes = span_text(measured.value, format_bytes)
            return f"Memory: {uncompared_text(measured.method)}; a call takes {sizes}"
        compared = measured[several]
        longest = compared[compared.seqlen == compared.seqlen.max()]
        groups = [rows for _, rows in longest.groupby(["mask", "detail", "direction"], sort=False)]
        # methods are compared at the setting with the most methods
        alike = max(groups, key=len).sort_values("value", kind="stable")
        least = alike.iloc[0]
        most = alike.iloc[-1]
        what = join(
            least["mask"], least.detail, DIRECTIONS[least.direction], format_length(int(least.seqlen))
        )
        ratio = f", {number(most.value / least.value)} times as much" if least.value > 0 else ""
        sizes = f"{least.method} takes {format_bytes(least.value)}, {most.method} {format_bytes(most.value)}"
        return f"Memory: {sizes}{ratio} ({what})"

    def draw(self, data: pd.DataFrame, style: Style) -> Canvas:
        size, unit = next(((size, unit) for size, unit in UNITS if data.value.max() >= size), UNITS[-1])
        scaled = data.assign(value=data.value / size, low=data.low / size, high=data.high / size)
        return draw_panels(
            scaled, style, x="seqlen", x_text=format_length, unit=unit, y_log=True, lowest_is_best=True
        )
