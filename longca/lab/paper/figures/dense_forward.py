"""Throughput of the forward pass over length, mask by mask."""

from longca.lab.paper.analysis.curves import Curves


class DenseForward(Curves):
    label = "Dense kernels over length, forward"
    number = "Figures 8–15, forward"
    order = 20
    direction = "fwd"
    subject = "Dense kernels, forward"
