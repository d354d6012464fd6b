"""Throughput of the backward pass over length, mask by mask."""

from longca.lab.paper.analysis.curves import Curves


class DenseBackward(Curves):
    label = "Dense kernels over length, backward"
    number = "Figures 8–15, backward"
    order = 30
    direction = "bwd"
    subject = "Dense kernels, backward"
