"""Costs of planning before the first call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.lab.paper.analysis.select import devices_apart, parallel
from longca.lab.paper.contract import Cells, PaperTable
from longca.lab.report.series import grouped, points
from longca.lab.store.text import number

if TYPE_CHECKING:
    import pandas as pd

COSTS = {"mask_ms": "mask", "schedule_ms": "schedule", "plan_ms": "kernels' plans"}


class CpPlanning(PaperTable):
    label = "Planning"
    section = "cp"
    number = "planning"
    order = 40
    caption = (
        "Milliseconds of the host, once for each mask and outside the timed calls: median, and "
        "highest, over all cells of a strategy."
    )

    def data(self, table: pd.DataFrame) -> pd.DataFrame:
        import pandas as pd

        rows = parallel(table)
        parts = [
            points(
                rows[rows[column].notna()].assign(cost=word),
                ["strategy", "kernel", "device", "cost"],
                column,
                unit="ms",
            )
            for column, word in COSTS.items()
        ]
        return pd.concat([part for part in parts if len(part)] or [pd.DataFrame()], ignore_index=True)

    def title(self, data: pd.DataFrame) -> str:
        worst = data.loc[data.value.idxmax()]
        return (
            f"The slowest step of planning is {worst.cost} of {worst.strategy} over {worst.kernel}: its "
            f"median is {number(float(worst.value))} ms; the slowest single step of all takes "
            f"{number(float(data.high.max()))} ms"
        )

    def cells(self, data: pd.DataFrame) -> Cells:
        rows = []
        apart = devices_apart(data)
        for (strategy, kernel, *device), of_method in grouped(data, ["strategy", "kernel", *apart]):
            costs = {
                word: f"{number(float(value), 2)}, at most {number(float(high), 2)}"
                for word, value, high in zip(of_method.cost, of_method.value, of_method.high, strict=True)
            }
            rows.append(
                (str(strategy), str(kernel), *device, *(costs.get(word, "") for word in COSTS.values()))
            )
        return Cells(("strategy", "kernel", *apart, *COSTS.values()), tuple(rows), num_keys=2 + len(apart))
