"""Peak memory of block-sparse kernels."""

from longca.lab.paper.analysis.memory_curves import MemoryCurves


class MemorySparse(MemoryCurves):
    label = "Peak memory of block-sparse kernels"
    number = "Tables 7–9"
    order = 20
    sparse = True
    masks = ("block_sparse_uniform",)
    densities = (0.5,)
