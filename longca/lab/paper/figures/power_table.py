"""Rates, clocks and power of calls alone and without a pause, for inputs of several values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.core import format_length
from longca.lab.paper.contract import Cells, PaperTable
from longca.lab.report.look import join
from longca.lab.report.questions.power import SETTING, VALUES, pace_finding, power
from longca.lab.report.series import grouped
from longca.lab.store.text import number

if TYPE_CHECKING:
    import pandas as pd

PACES = {False: "alone", True: "without a pause"}


class PowerTable(PaperTable):
    label = "Power limit, in numbers"
    section = "beyond"
    number = "rates, clocks and power"
    order = 11
    caption = (
        "TFLOP/s, with the SM clock in MHz and the power in W beside the samples. Power is a mean of the "
        "last second: beside calls timed alone, which end sooner, it has not settled."
    )

    def data(self, table: pd.DataFrame) -> pd.DataFrame:
        return power(table)

    def title(self, data: pd.DataFrame) -> str:
        return pace_finding(data)

    def cells(self, data: pd.DataFrame) -> Cells:
        kinds = [kind for kind in VALUES if kind in set(data.input_values)]
        rows = []
        for (method, direction, seqlen, mask, setting, sustained), of_setting in grouped(
            data, [*SETTING, "sustained"]
        ):
            known = {
                str(row["input_values"]): row
                for row in of_setting.to_dict("records")
                if row["status"] == "ok"
            }
            rows.append(
                (
                    str(method),
                    f"{direction} {format_length(int(seqlen))}",
                    join(str(mask), str(setting)),
                    PACES[bool(sustained)],
                    *(_text(known[kind]) if kind in known else "" for kind in kinds),
                )
            )
        return Cells(
            ("kernel", "call", "mask", "pace", *(VALUES[kind] for kind in kinds)), tuple(rows), num_keys=4
        )


def _text(row: dict[str, float]) -> str:
    return f"{number(float(row['value']))} ({row['clock_mhz']:.0f} MHz, {row['power_w']:.0f} W)"
