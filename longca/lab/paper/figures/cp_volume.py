"""Bytes that a rank sends, beside the study's formulas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.lab.paper.analysis.select import parallel, settings
from longca.lab.paper.contract import Cells, PaperTable
from longca.lab.report.series import points
from longca.lab.store.text import number, plural

if TYPE_CHECKING:
    import pandas as pd

KEY = ["strategy", "direction", "mask", "world", "tokens"]


class CpVolume(PaperTable):
    label = "Bytes beside the formulas"
    section = "cp"
    number = "Table 3"
    order = 20
    caption = (
        "Bytes that a rank sends in one call over those of the study's formula, lowest to highest of all "
        "masks and kernels. 1 is the formula; below it, what no query sees was not sent. Peers whose bytes "
        "nobody counts are missing."
    )

    def data(self, table: pd.DataFrame) -> pd.DataFrame:
        rows = parallel(table)
        rows = rows.loc[rows.moved_bytes.notna() & (rows.formula_bytes > 0) & (rows.status == "ok")]
        rows = rows.assign(
            tokens=rows.seqlen // rows.world,
            ratio=rows.moved_bytes.astype(float) / rows.formula_bytes.astype(float),
        )
        return points(rows, KEY, "ratio", unit="of the formula").sort_values(
            KEY, kind="stable", ignore_index=True
        )

    def title(self, data: pd.DataFrame) -> str:
        dense = data[(data["mask"] == "full") & (data.direction == "fwd")]
        exact = dense[(dense.value - 1).abs() <= 1e-3]
        others = data.loc[data["mask"] != "full"]
        below = others.loc[others.value < 0.999]
        least = (
            f"; at the least {number(float(below.value.min()))} of it under "
            f"{below.loc[below.value.idxmin(), 'mask']}"
            if len(below)
            else ""
        )
        return (
            f"Bytes of strategies: forward under a full mask, {len(exact)} of {plural(len(dense), 'case')} "
            f"send just the formula's bytes; under other masks, in both passes, {len(below)} of "
            f"{plural(len(others), 'case')} send fewer{least}"
        )

    def cells(self, data: pd.DataFrame) -> Cells:
        places = settings(data)
        rows = []
        for strategy, of_strategy in data.groupby("strategy"):
            row = [str(strategy)]
            for world, tokens, direction in places:
                of_place = (
                    (of_strategy.world == world)
                    & (of_strategy.tokens == tokens)
                    & (of_strategy.direction == direction)
                )
                here = of_strategy.value[of_place]
                low = number(float(here.min()), 3) if len(here) else ""
                high = number(float(here.max()), 3) if len(here) else ""
                row.append(low if low == high else f"{low}–{high}")
            rows.append(tuple(row))
        return Cells(("strategy", *places.values()), tuple(rows))
