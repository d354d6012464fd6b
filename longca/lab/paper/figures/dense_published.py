"""Dense kernels beside the numbers that others published."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from longca.core import format_length, load_hardware
from longca.lab.paper.analysis.select import devices_apart, kernels, rates
from longca.lab.paper.contract import Cells, PaperTable
from longca.lab.paper.published import SOURCE, published_pairs, published_rates
from longca.lab.report.series import grouped
from longca.lab.store.text import number, percent, plural

if TYPE_CHECKING:
    import pandas as pd

ON = ["kernel", "mask", "direction", "seqlen", "heads", "device"]
SHARES = [*SOURCE, "mask_family", "published_tflops", "published_percent", "peak_percent", "ratio"]


class DensePublished(PaperTable):
    label = "Beside published numbers"
    section = "dense"
    number = "published beside measured"
    order = 50
    caption = (
        "Share of the GPU's peak, bf16: measured here, and published for another GPU or another version. "
        "Charts were read by hand, to ± 3 TFLOP/s. Published document masks come from another sampler, so "
        "that only the other masks are alike."
    )

    def data(self, table: pd.DataFrame) -> pd.DataFrame:
        rows = kernels(table, sparse=False)
        measured = rates(rows.loc[rows.status == "ok"], *ON)
        pairs = published_pairs(measured, published_rates(table, load_hardware()))
        joined = measured.join(pairs.loc[pairs.is_told].set_index("row")[SHARES], how="inner")
        joined = joined.rename(columns={"value": "measured_tflops", "peak_percent": "measured_percent"}).drop(
            columns="unit"
        )
        return joined.sort_values(["source", *ON], kind="stable", ignore_index=True)

    def title(self, data: pd.DataFrame) -> str:
        dense = data.loc[data.mask_family != "documents"]
        if not len(dense):
            return "Only documents of another sampler were published for what was measured"
        source = dense.groupby("title").size().idxmax()
        rows = dense.loc[dense.title == source]
        parts = [
            f"{kernel} {number(float(np.exp(np.log(of_kernel.ratio).mean())), 3)}×"
            for kernel, of_kernel in rows.groupby("kernel")
        ]
        near = float(((dense.ratio - 1).abs() <= 0.1).mean())
        return (
            f"Share of peak here over that of {source} ({rows.hardware.iloc[0]}), without documents: "
            f"{', '.join(parts)}; {percent(near)} of all {plural(len(dense), 'pair')} lie within 10 %"
        )

    def cells(self, data: pd.DataFrame) -> Cells:
        lengths = sorted(data.seqlen.unique())
        rows = []
        apart = devices_apart(data)
        for key, of_key in grouped(
            data, ["title", "kernel", "mask", "heads", "direction", *apart], sort=False
        ):
            values = {
                length: f"{number(measured, 3)} / {number(published, 3)}"
                for length, measured, published in zip(
                    of_key.seqlen, of_key.measured_percent, of_key.published_percent, strict=True
                )
            }
            rows.append((*map(str, key), *(values.get(length, "") for length in lengths)))
        head = ("source", "kernel", "mask", "heads", "pass", *apart)
        return Cells(
            (*head, *(format_length(int(length)) for length in lengths)), tuple(rows), num_keys=len(head)
        )
