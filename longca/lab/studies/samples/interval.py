"""The interval of the median of timed calls, by order statistics, without assumptions on the distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import median
from typing import NamedTuple

CONFIDENCE = 0.95
# samples; above, the normal approximation of the binomial gives the same ranks within one
EXACT_UP_TO = 1_000


class MedianInterval(NamedTuple):
    """An interval that holds a median, in the unit of the samples."""

    low: float
    high: float


def median_interval(samples: Sequence[float]) -> MedianInterval | None:
    """The 95 % interval of the median by order statistics, deterministic and without assumptions on the
    distribution.

    It lies between the k-th least and the k-th largest sample, with the largest k for which the coverage is
    at least 95 %.

    Returns: None for fewer than six samples, whose extremes have a lower coverage.
    """
    rank = _rank(len(samples))
    if rank is None:
        return None
    ordered = sorted(samples)
    return MedianInterval(ordered[rank], ordered[-1 - rank])


def median_bounds(samples: Sequence[float]) -> MedianInterval:
    """The interval of the median. For fewer than six samples, whose coverage is lower, it is the range of all
    samples.

    Args:
        samples: at least one.
    """
    return median_interval(samples) or MedianInterval(min(samples), max(samples))


def median_precision(samples: Sequence[float]) -> float | None:
    """The distance from the median to the farther end of its interval, as a share of the median; None without
    an interval."""
    interval = median_interval(samples)
    if interval is None:
        return None
    middle = median(samples)
    return max(middle - interval.low, interval.high - middle) / middle


@lru_cache(maxsize=4096)
def _rank(count: int) -> int | None:
    """The number of samples below, and above, the interval of the median for this number of samples; None
    without an interval."""
    if count > EXACT_UP_TO:
        return math.floor((count - 1.959964 * math.sqrt(count)) / 2) - 1
    # cumulative number of ways in which at most this many samples fall below the median
    outside = 0
    rank = -1
    while True:
        outside += math.comb(count, rank + 1)
        if 2 * outside > (1 - CONFIDENCE) * 2**count:
            return rank if rank >= 0 else None
        rank += 1
