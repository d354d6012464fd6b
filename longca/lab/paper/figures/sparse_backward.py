"""Throughput of the backward pass under blocks, over length."""

from longca.lab.paper.analysis.sparse_curves import SparseCurves


class SparseBackwardCurves(SparseCurves):
    label = "Block-sparse kernels over length, backward"
    number = "Figure 4, backward"
    order = 20
    direction = "bwd"
    subject = "Block-sparse kernels, backward"
