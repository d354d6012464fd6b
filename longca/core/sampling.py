"""Statistics of timed calls, in order: the interval of their median, and their drift. Without assumptions about how times are spread."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from functools import lru_cache
from statistics import median
from typing import NamedTuple

CONFIDENCE = 0.95
EXACT_UP_TO = 1_000  # samples; of more, the normal approximation of the binomial gives the same ranks within one
FEWEST_FOR_DRIFT = 10  # of fewer samples no order is rare enough to tell, or too few hold each third
DRIFT_LEVEL = 0.01  # of false alarms
DRIFT_SHARE = 0.01  # of the median, between the first and the last third: less is no matter


class Interval(NamedTuple):
    """An interval that holds a median, in the unit of the samples."""

    low: float
    high: float


def median_interval(samples: Sequence[float]) -> Interval | None:
    """The 95 % interval of the median by order statistics: no drawing, no assumption about the distribution.

    The k-th least and the k-th largest sample, with the largest k for which at least 95 % of all such intervals hold the median.

    Returns:
        None for fewer than six samples: even their extremes hold it less often.
    """
    rank = _rank(len(samples))
    if rank is None:
        return None
    ordered = sorted(samples)
    return Interval(ordered[rank], ordered[-1 - rank])


def median_bounds(samples: Sequence[float]) -> Interval:
    """The interval of the median. Of fewer than six samples, whose interval would hold it less often, it is the range of all.

    Args:
        samples: at least one.
    """
    return median_interval(samples) or Interval(min(samples), max(samples))


def median_precision(samples: Sequence[float]) -> float | None:
    """The distance from the median to the farther end of its interval, as a share of the median; None where there is no interval."""
    interval = median_interval(samples)
    if interval is None:
        return None
    middle = median(samples)
    return max(middle - interval.low, interval.high - middle) / middle


def shift(samples: Sequence[float]) -> float | None:
    """The median of the last third less that of the first third, as a share of the median of all; None for fewer than three."""
    third = len(samples) // 3
    return (median(samples[-third:]) - median(samples[:third])) / median(samples) if third else None


def trend_chance(samples: Sequence[float]) -> float:
    """The probability that samples without a trend show one as strong, by the test of Mann and Kendall (two-sided, ties counted)."""
    count = len(samples)
    ordered: list[float] = []
    score = 0
    for sample in samples:
        score += bisect_left(ordered, sample) - (len(ordered) - bisect_right(ordered, sample))
        insort(ordered, sample)
    variance = (_spread(count) - sum(map(_spread, _ties(ordered)))) / 18
    return math.erfc(max(abs(score) - 1, 0) / math.sqrt(2 * variance)) if variance else 1.0


def drift(samples: Sequence[float]) -> str:
    """The drift of samples in the order measured: "rising", "falling", "none"; "unknown" for fewer than ten.

    They drift if the test of Mann and Kendall says so at 1 %, and the medians of their first and last third differ by more than 1 %.
    """
    if len(samples) < FEWEST_FOR_DRIFT:
        return "unknown"
    change = shift(samples) or 0.0
    if abs(change) <= DRIFT_SHARE or trend_chance(samples) >= DRIFT_LEVEL:
        return "none"
    return "rising" if change > 0 else "falling"


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


def _spread(count: int) -> int:
    return count * (count - 1) * (2 * count + 5)


def _ties(ordered: Sequence[float]) -> list[int]:
    """How often each value stands there, of those that stand there more than once."""
    counts: list[int] = []
    start = 0
    while start < len(ordered):
        end = bisect_right(ordered, ordered[start])
        if end - start > 1:
            counts.append(end - start)
        start = end
    return counts
