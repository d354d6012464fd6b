"""Throughput of the forward against length, one panel a mask."""

from longca.report.throughput import Throughput


class ThroughputForward(Throughput):
    label = "Throughput, forward"
    order = 10
    direction, word = "fwd", "Forward"
