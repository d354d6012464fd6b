"""Balance of the ranks' times."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.lab.paper.analysis.select import devices_apart, parallel
from longca.lab.paper.contract import Cells, PaperTable
from longca.lab.report.series import grouped, points
from longca.lab.store.text import number, percent

if TYPE_CHECKING:
    import pandas as pd

KEY = ["strategy", "kernel", "device", "mask"]


class CpBalance(PaperTable):
    label = "Balance of ranks"
    section = "cp"
    number = "balance"
    order = 30
    caption = (
        "The slowest rank's median time over that of the median rank, minus 1: the mean over lengths, "
        "numbers of ranks and both passes."
    )

    def data(self, table: pd.DataFrame) -> pd.DataFrame:
        rows = parallel(table)
        rows = rows.loc[rows.straggler_percent.notna() & (rows.world > 2)]
        return points(rows, [*KEY, "direction", "world", "seqlen"], "straggler_percent", unit="%")

    def title(self, data: pd.DataFrame) -> str:
        means = data.groupby("strategy").value.mean()
        middle, least, most = (
            percent(float(lag) / 100) for lag in (data.value.median(), means.min(), means.max())
        )
        return (
            f"The slowest rank of a strategy lags by {middle} in the median; {means.idxmin()} is the evenest "
            f"with {least} in the mean, {means.idxmax()} the least even with {most}"
        )

    def cells(self, data: pd.DataFrame) -> Cells:
        masks = list(dict.fromkeys(data["mask"]))
        rows = []
        apart = devices_apart(data)
        for (strategy, kernel, *device), of_method in grouped(data, ["strategy", "kernel", *apart]):
            means = of_method.groupby("mask").value.mean()
            rows.append(
                (
                    str(strategy),
                    str(kernel),
                    *device,
                    *(f"{number(float(means[mask]), 2)} %" if mask in means else "" for mask in masks),
                )
            )
        return Cells(("strategy", "kernel", *apart, *masks), tuple(rows), num_keys=2 + len(apart))
