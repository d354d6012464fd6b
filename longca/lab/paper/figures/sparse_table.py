"""Throughput of block-sparse kernels as numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.core import format_length
from longca.lab.paper.analysis.curves import most_often_fastest
from longca.lab.paper.analysis.select import block_panels, devices_apart, kernels, rates
from longca.lab.paper.contract import Cells, PaperTable
from longca.lab.report import standings_of
from longca.lab.report.series import grouped
from longca.lab.store.text import number

if TYPE_CHECKING:
    import pandas as pd

KEY = ["mask_variant", "heads", "direction", "seqlen", "mask_density_asked"]


class SparseTable(PaperTable):
    label = "Block-sparse kernels, numbers"
    section = "sparse"
    number = "Tables 4–6"
    order = 30
    caption = (
        "TFLOP/s of the computed blocks, medians. The first of a row is marked, and all that tie with it."
    )

    def data(self, table: pd.DataFrame) -> pd.DataFrame:
        rows = kernels(table, sparse=True)
        rows = block_panels(rows.loc[rows["mask"] == "block_sparse_uniform"])
        curves = rates(rows, "mask", "detail", *KEY, "device", "method")
        return curves.sort_values([*KEY, "device", "method"], kind="stable", ignore_index=True)

    def title(self, data: pd.DataFrame) -> str:
        both = data.assign(detail=data.detail + data.direction)
        points = most_often_fastest(both, "block, density, heads, direction and length")
        return f"Block-sparse kernels in numbers: {points}"

    def cells(self, data: pd.DataFrame) -> Cells:
        methods = sorted(set(data.method[data.value.notna()]))
        apart = devices_apart(data)
        rows = []
        cell_ids = []
        best = set()
        num_keys = len(KEY) + len(apart)
        for key, of_key in grouped(data, [*KEY, *apart], sort=False):
            variant, heads, direction, seqlen, density, *device = key
            values = of_key.set_index("method").value.dropna()
            if not len(values):
                continue
            if len(values) > 1:
                leaders = standings_of(of_key, KEY)[key[: len(KEY)]].leaders
                best |= {(len(rows), num_keys + methods.index(method)) for method in leaders}
            cell_ids.append(" ".join(of_key.cell_ids))
            rows.append(
                (
                    str(variant),
                    str(heads),
                    str(direction),
                    format_length(int(seqlen)),
                    f"{density:g}",
                    *device,
                    *(number(float(values[method]), 3) if method in values else "" for method in methods),
                )
            )
        return Cells(
            ("blocks", "heads", "pass", "length", "computed", *apart, *methods),
            tuple(rows),
            frozenset(best),
            num_keys=num_keys,
            cell_ids=tuple(cell_ids),
        )
