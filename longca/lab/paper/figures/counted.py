"""Pairs and bytes as the released code counts or keeps them, beside those without its defects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from longca.lab.paper.analysis.counted import GLOBALS, RING, WINDOWS, counted, effects
from longca.lab.paper.contract import Cells, PaperTable
from longca.lab.store.text import format_bytes, number, percent

if TYPE_CHECKING:
    import pandas as pd


class Counted(PaperTable):
    label = "Counted as released"
    section = "released"
    number = "defects F1, F2, F9 and F18"
    order = 25
    needs_records = False
    caption = (
        "By formulas, without a measurement. Pairs are those of a head, or of eight KV heads (F9): as "
        "released, those that FLOPs are counted of (F1, F2) or that FlashInfer runs (F9); without, those "
        "that most kernels run. In common are blocks of FlashInfer that are blocks of the other kernels. "
        "Bytes of a ring are what a rank keeps besides its own shards: keys, values and a partial output in "
        "bf16 for each rank as released; here keys and values of two steps and a sum in fp32."
    )

    def data(self, table: pd.DataFrame) -> pd.DataFrame:
        return counted()

    def title(self, data: pd.DataFrame) -> str:
        least = {defect: 1 / float(data.ratio[data.defect == defect].min()) for defect in (WINDOWS, GLOBALS)}
        rings = data.loc[data.defect == RING]
        most = rings.loc[rings.ratio.astype(float).idxmax()]
        return (
            f"As released, FLOPs of windows are counted up to {number(least[WINDOWS], 3)} times too low and "
            f"those of global windows up "
            f"to {number(least[GLOBALS], 3)} times; a ring keeps up to {number(float(most.ratio))} times as "
            f"much ({most.case})"
        )

    def effects(self, data: pd.DataFrame) -> dict[int, str]:
        return effects(data)

    def cells(self, data: pd.DataFrame) -> Cells:
        header = ("defect", "case", "unit", "as released", "without", "as released over without", "in common")
        return Cells(header, tuple(_cells(row) for row in data.itertuples()), num_keys=2)


def _cells(row: Any) -> tuple[str, ...]:
    format_value = format_bytes if row.unit == "bytes" else _millions
    return (
        f"F{row.defect}",
        row.case,
        row.unit,
        format_value(row.released),
        format_value(row.without),
        f"{number(row.ratio, 3)}×",
        percent(row.common) if row.common == row.common else "",
    )


def _millions(count: float) -> str:
    return f"{number(count / 1e6)} million"
