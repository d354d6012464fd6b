"""Statistics of timed calls, in order: the interval of their median, and their drift."""

from longca.lab.studies.samples.drift import DRIFT_SHARE, FEWEST_FOR_DRIFT, drift, shift, trend_chance
from longca.lab.studies.samples.interval import (
    MedianInterval,
    median_bounds,
    median_interval,
    median_precision,
)

__all__ = [
    "DRIFT_SHARE",
    "FEWEST_FOR_DRIFT",
    "MedianInterval",
    "drift",
    "median_bounds",
    "median_interval",
    "median_precision",
    "shift",
    "trend_chance",
]
