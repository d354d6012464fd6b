"""Throughput of the forward over length, one panel for each mask."""

from longca.lab.report.throughput import Throughput


class ThroughputForward(Throughput):
    label = "Throughput, forward"
    order = 10
    direction = "fwd"
    word = "Forward"
