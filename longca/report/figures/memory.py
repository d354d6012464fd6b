"""Memory of a call against length, one panel a mask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.core.units import format_length
from longca.report.contract import Figure
from longca.report.panels import MASK, draw_panels, in_panel_order
from longca.report.series import attention, labelled, points
from longca.store.text import format_bytes, number

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Canvas

    from longca.report.style import Style

UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "bytes"))


class PeakMemory(Figure):
    label = "Peak memory"
    section = "memory"
    caption = ("Most memory during one call above what was resident before it (inputs, outputs of earlier calls): "
               "lower is better. Solid lines are forward, dashed ones backward. On a GPU the allocator counts bytes; "
               "on a CPU the resident set is sampled, which misses short peaks and cannot show what was reused.")

    def data(self, table: pd.DataFrame) -> pd.DataFrame:
        named = labelled(table)
        tried = attention(named, "kernel")
        tried = tried[tried.peak_bytes.notna() | (tried.status != "ok")]
        return in_panel_order(points(tried, [*MASK, "method", "direction", "seqlen"], "peak_bytes", unit="bytes"), named)

    def title(self, data: pd.DataFrame) -> str:
        longest = data[(data.seqlen == data.seqlen.max()) & data.value.notna()]
        if not len(longest):
            return "Memory: nothing could be measured at the longest length"
        typical = longest.groupby("method").value.median().sort_values(kind="stable")
        least, most = typical.index[0], typical.index[-1]
        at = f"at {format_length(int(data.seqlen.max()))}"
        if least == most:
            return f"Memory: {least} takes {format_bytes(typical[least])} {at}, median over masks"
        ratio = f", {number(typical[most] / typical[least], 2)} times as much" if typical[least] > 0 else ""
        sizes = f"{least} takes {format_bytes(typical[least])}, {most} {format_bytes(typical[most])}"
        return f"Memory {at}: {sizes}{ratio} (medians over masks)"

    def draw(self, data: pd.DataFrame, style: Style) -> Canvas:
        size, unit = next(((size, unit) for size, unit in UNITS if data.value.max() >= size), UNITS[-1])
        scaled = data.assign(value=data.value / size, low=data.low / size, high=data.high / size)
        return draw_panels(scaled, style, x="seqlen", x_text=format_length, unit=unit, y_log=True)
