"""Throughput of the forward pass over length, mask by mask."""

from longca.lab.paper.analysis.curves import Curves


class DenseForward(Curves):
    label = "Dense kernels over length, forward"
    number, order = "Figures 8–15, forward", 20
    direction, subject = "fwd", "Dense kernels, forward"
