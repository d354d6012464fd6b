"""Throughput of the backward against length, one panel a mask."""

from longca.report.throughput import Throughput


class ThroughputBackward(Throughput):
    label = "Throughput, backward"
    order = 20
    direction, word = "bwd", "Backward"
