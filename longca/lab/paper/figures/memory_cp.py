"""Memory of context parallelism above the shards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.core import format_length
from longca.lab.paper.analysis.select import devices_apart, parallel, settings
from longca.lab.paper.contract import Cells, PaperTable
from longca.lab.report import span_text, uncompared_text
from longca.lab.report.series import grouped, points
from longca.lab.store.text import format_bytes, number

if TYPE_CHECKING:
    import pandas as pd

KEY = ["strategy", "kernel", "device", "direction", "tokens", "world"]


class MemoryCp(PaperTable):
    label = "Memory of context parallelism"
    section = "memory"
    number = "beyond the study"
    order = 30
    caption = (
        "Most memory of a rank during a call, above its shards of inputs and outputs, under a full mask: "
        "the buffers that a strategy needs."
    )

    def data(self, table: pd.DataFrame) -> pd.DataFrame:
        rows = parallel(table)
        rows = rows.loc[(rows["mask"] == "full") & rows.above_shards_bytes.notna()]
        rows = rows.assign(tokens=rows.seqlen // rows.world)
        return points(rows, KEY, "above_shards_bytes", unit="bytes").sort_values(
            KEY, kind="stable", ignore_index=True
        )

    def title(self, data: pd.DataFrame) -> str:
        groups = [rows for _, rows in data.groupby(["kernel", "device", "direction", "tokens", "world"])]
        widest = max(
            groups, key=lambda rows: (len(rows), rows.world.iloc[0], rows.tokens.iloc[0])
        ).sort_values("value", kind="stable")
        least = widest.iloc[0]
        most = widest.iloc[-1]
        if len(widest) == 1:
            sizes = span_text(data.value, format_bytes)
            ran = uncompared_text(data.strategy)
            return f"Memory of strategies: {ran}; a call takes {sizes} above its shards"
        return (
            f"Memory of strategies on {least.world} ranks × {format_length(int(least.tokens))}, "
            f"{least.kernel}, {least.direction}: {least.strategy} takes "
            f"{format_bytes(least.value)} above its shards, {most.strategy} "
            f"{number(most.value / max(least.value, 1))} times as much"
        )

    def cells(self, data: pd.DataFrame) -> Cells:
        places = settings(data)
        rows = []
        apart = devices_apart(data)
        for (strategy, kernel, *device), of_method in grouped(data, ["strategy", "kernel", *apart]):
            at = zip(of_method.world, of_method.tokens, of_method.direction, strict=True)
            values = {column: format_bytes(value) for column, value in zip(at, of_method.value, strict=True)}
            rows.append((str(strategy), str(kernel), *device, *(values.get(column, "") for column in places)))
        return Cells(("strategy", "kernel", *apart, *places.values()), tuple(rows), num_keys=2 + len(apart))
