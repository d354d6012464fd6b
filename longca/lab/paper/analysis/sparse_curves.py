"""Throughput of block-sparse kernels over length, a panel for each block, density and heads: the base of both
directions' figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.lab.paper.analysis.curves import Curves
from longca.lab.paper.analysis.select import block_panels, kernels, rates
from longca.lab.report.rates import draw_rates

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Canvas

    from longca.lab.report.look import Style

DENSITIES = (0.2, 0.5, 0.8)  # the study's, which calls them sparsity ratios


class SparseCurves(Curves):
    """Median rates of one direction under uniform blocks, a line for each kernel."""

    section = "sparse"
    points_of = "block, density, heads and length"
    caption = (
        "Throughput of the blocks that are computed, over sequence length: higher is better. All kernels "
        "run the very same blocks, and FLOPs count these. A panel is a block size, a share of blocks that "
        "is computed, and query:KV heads. Kernels that know one block size or as many KV heads as query "
        "heads only are missing in the other panels."
    )

    def data(self, table: pd.DataFrame) -> pd.DataFrame:
        rows = kernels(table, sparse=True, direction=self.direction)
        rows = block_panels(
            rows.loc[(rows["mask"] == "block_sparse_uniform") & rows.mask_density_asked.isin(DENSITIES)]
        )
        curves = rates(
            rows,
            "mask",
            "mask_label",
            "setting",
            "detail",
            "mask_variant",
            "mask_density_asked",
            "heads",
            "device",
            "method",
            "seqlen",
        )
        block = curves.mask_variant.str.extract(r"(\d+)$")[0].fillna("0").astype(int)
        return curves.assign(block=block).sort_values(
            ["block", "heads", "mask_density_asked", "device", "method", "seqlen"],
            kind="stable",
            ignore_index=True,
        )

    def draw(self, data: pd.DataFrame, style: Style) -> Canvas:
        blocks = data.mask_variant.where(data.mask_variant != "", "uniform blocks")
        settings = data.detail.str.split(" · ", n=1).str[-1]
        return draw_rates(data.assign(mask=blocks, detail=settings), style, per_row=6)
