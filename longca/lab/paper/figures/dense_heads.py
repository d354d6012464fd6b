"""The change by as many KV heads as query heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from longca.core import format_length
from longca.lab.paper.analysis.select import GQA, MHA, devices_apart, kernels, rates
from longca.lab.paper.contract import Cells, PaperTable
from longca.lab.report.series import grouped
from longca.lab.store.text import number, percent, plural

if TYPE_CHECKING:
    import pandas as pd

KEY = ["device", "method", "direction", "seqlen"]


class DenseHeads(PaperTable):
    label = "64 KV heads over 8"
    section = "dense"
    number = "64:64 beside 64:8"
    order = 40
    caption = (
        "Throughput with 64 KV heads over throughput with 8, the geometric mean over the masks that ran "
        "with both: above 1, more KV heads are quicker. n is the number of masks."
    )

    def data(self, table: pd.DataFrame) -> pd.DataFrame:
        import pandas as pd

        by = ["mask", "mask_params", *KEY]
        mha, gqa = (rates(kernels(table, sparse=False, heads=heads), *by) for heads in (MHA, GQA))
        if not len(mha) or not len(gqa):
            return pd.DataFrame()
        both = mha.merge(gqa, on=by, suffixes=("_64", "_8")).dropna(subset=["value_64", "value_8"])
        both["ratio"] = both.value_64 / both.value_8
        return both.loc[:, [*by, "value_64", "value_8", "ratio", "cell_ids_64", "cell_ids_8"]]

    def title(self, data: pd.DataFrame) -> str:
        parts = [
            f"{f'on {device} ' if devices_apart(data) else ''}{_finding(rows)}"
            for device, rows in data.groupby("device")
        ]
        return f"With as many KV heads as query heads throughput changes: {'; '.join(parts)}"

    def cells(self, data: pd.DataFrame) -> Cells:
        lengths = sorted(data.seqlen.unique())
        places = [(direction, length) for direction in ("fwd", "bwd") for length in lengths]
        rows = []
        apart = devices_apart(data)
        for key, of_method in grouped(data, ["method", *apart]):
            row = list(map(str, key))
            for direction, length in places:
                here = of_method[
                    (of_method.direction == direction) & (of_method.seqlen == length)
                ].ratio.astype(float)
                row.append(
                    f"{number(float(np.exp(np.log(here).mean())), 3)} (n={len(here)})" if len(here) else ""
                )
            rows.append(tuple(row))
        return Cells(
            (
                "kernel",
                *apart,
                *(f"{direction} {format_length(int(length))}" for direction, length in places),
            ),
            tuple(rows),
            num_keys=1 + len(apart),
        )


def _finding(data: pd.DataFrame) -> str:
    middle = float(np.exp(np.log(data.ratio.astype(float)).mean()))
    near = float(((data.ratio - 1).abs() <= 0.05).mean())
    return (
        f"it is {number(middle, 3)}× that with 8, in the mean of {plural(len(data), 'pair')}, "
        f"{percent(near)} of which are within 5 %"
    )
