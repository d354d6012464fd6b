"""Throughput of the backward pass over length, mask by mask."""

from longca.lab.paper.analysis.curves import Curves


class DenseBackward(Curves):
    label = "Dense kernels over length, backward"
    number, order = "Figures 8–15, backward", 30
    direction, subject = "bwd", "Dense kernels, backward"
