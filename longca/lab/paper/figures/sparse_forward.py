"""Throughput of the forward pass under blocks, over length."""

from longca.lab.paper.analysis.sparse_curves import SparseCurves


class SparseForwardCurves(SparseCurves):
    label = "Block-sparse kernels over length, forward"
    number, order = "Figure 4, forward", 10
    direction, subject = "fwd", "Block-sparse kernels, forward"
