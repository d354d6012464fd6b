"""Throughput of the backward over length, one panel for each mask."""

from longca.lab.report.throughput import Throughput


class ThroughputBackward(Throughput):
    label = "Throughput, backward"
    order = 20
    direction = "bwd"
    word = "Backward"
