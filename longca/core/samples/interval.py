"""The interval of the median of timed calls, by order statistics: no assumption about how times are spread."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import median
from typing import NamedTuple

CONFIDENCE = 0.95
EXACT_UP_TO = 1_000  # samples; of more, the normal approximation of the binomial gives the same ranks within one


class MedianInterval(NamedTuple):
    """An interval that holds a median, in the unit of the samples."""

    low: float
    high: float


def median_interval(samples: Sequence[float]) -> MedianInterval | None:
    """The 95 % interval of the median by order statistics: no drawing, no assumption about the distribution.

    The k-th least and the k-th largest sample, with the largest k for which at least 95 % of all such intervals hold the median.

    Returns:
        None for fewer than six samples: even their extremes hold it less often.
    """
    rank = _rank(len(samples))
    if rank is None:
        return None
    ordered = sorted(samples)
    return MedianInterval(ordered[rank], ordered[-1 - rank])


def median_bounds(samples: Sequence[float]) -> MedianInterval:
    """The interval of the median. Of fewer than six samples, whose interval would hold it less often, it is the range of all.

    Args:
        samples: at least one.
    """
    return median_interval(samples) or MedianInterval(min(samples), max(samples))


def median_precision(samples: Sequence[float]) -> float | None:
    """The distance from the median to the farther end of its interval, as a share of the median; None where there is no interval."""
    interval = median_interval(samples)
    if interval is None:
        return None
    middle = median(samples)
    return max(middle - interval.low, interval.high - middle) / middle


@lru_cache(maxsize=4096)
def _rank(count: int) -> int | None:
    """How many samples lie below the interval of the median of so many, and above it; None where there is no interval."""
    if count > EXACT_UP_TO:
        return math.floor((count - 1.959964 * math.sqrt(count)) / 2) - 1
    outside, rank = 0, -1  # ways in which so many samples at most fall below the median
    while True:
        outside += math.comb(count, rank + 1)
        if 2 * outside > (1 - CONFIDENCE) * 2**count:
            return rank if rank >= 0 else None
        rank += 1
