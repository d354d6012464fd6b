"""Peak memory of dense kernels."""

from longca.lab.paper.analysis.memory_curves import MemoryCurves


class MemoryDense(MemoryCurves):
    label = "Peak memory of dense kernels"
    number = "Figures 16–18"
    order = 10
    sparse = False
    masks = ("full", "causal", "causal_document", "global_sliding_window")
