"""Statistics of timed calls, in order: the interval of their median, and their drift."""

from typing import TYPE_CHECKING

from longca.core.lazy import face
from longca.lab.studies.samples.drift import DRIFT_SHARE, FEWEST_FOR_DRIFT, drift, shift, trend_chance
from longca.lab.studies.samples.interval import (
    MedianInterval,
    median_bounds,
    median_interval,
    median_precision,
)

if TYPE_CHECKING:
    from longca.lab.studies.samples.statistics import NOISY, Times
else:
    __getattr__, __dir__ = face(__name__)

__all__ = [
    "DRIFT_SHARE",
    "FEWEST_FOR_DRIFT",
    "NOISY",
    "MedianInterval",
    "Times",
    "drift",
    "median_bounds",
    "median_interval",
    "median_precision",
    "shift",
    "trend_chance",
]
