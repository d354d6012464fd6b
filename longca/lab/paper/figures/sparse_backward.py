"""Throughput of the backward pass under blocks, over length."""

from longca.lab.paper.analysis.sparse_curves import SparseCurves


class SparseBackwardCurves(SparseCurves):
    label = "Block-sparse kernels over length, backward"
    number, order = "Figure 4, backward", 20
    direction, subject = "bwd", "Block-sparse kernels, backward"
