"""Throughput of the forward pass under blocks, over length."""

from longca.lab.paper.analysis.sparse_curves import SparseCurves


class SparseForwardCurves(SparseCurves):
    label = "Block-sparse kernels over length, forward"
    number = "Figure 4, forward"
    order = 10
    direction = "fwd"
    subject = "Block-sparse kernels, forward"
