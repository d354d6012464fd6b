"""Measurements and points of made-up samples, and resolutions that are round numbers."""

from math import log

from longca.lab.ranking import MeasuredPoint, Measurement, Resolution, Resolutions

GPU = "NVIDIA H100 80GB HBM3"
KNOWN = Resolutions(
    (
        Resolution(GPU, "play-off", log(1.004), 100, 0.0),
        Resolution(GPU, "run", log(1.01), 100, 0.0),
        Resolution(GPU, "device", log(1.02), 100, 0.0),
        Resolution(GPU, "model", log(1.04), 100, 0.25),
    )
)


def measured(*times_ms, **facts):
    return Measurement.timed(times_ms, **{"device": GPU, "unit": "GPU-a", "run": "r1", **facts})


def point(method, *times_ms, played=(), **facts):
    """A point of one seed; `played` are the times of its play-off "p"."""
    playoffs = (measured(*played, playoff="p", **facts),) if played else ()
    return MeasuredPoint(method, (measured(*times_ms, **facts),), playoffs, KNOWN)
