"""The drift of timed calls in the order measured: a trend by rank, and a size that matters."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from statistics import median

FEWEST_FOR_DRIFT = 10  # with fewer samples no order is rare enough, or thirds are too small
DRIFT_LEVEL = 0.01  # of false alarms
DRIFT_SHARE = 0.01  # of the median, between the first and the last third: smaller drifts are ignored


def shift(samples: Sequence[float]) -> float | None:
    """The median of the last third minus that of the first third, as a share of the overall median; None for
    fewer than three samples."""
    third = len(samples) // 3
    return (median(samples[-third:]) - median(samples[:third])) / median(samples) if third else None


def trend_chance(samples: Sequence[float]) -> float:
    """The p-value of the Mann-Kendall trend test (two-sided, corrected for ties)."""
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

    They drift if the Mann-Kendall test is significant at 1 %, and the medians of their first and last third
    differ by more than 1 %.
    """
    if len(samples) < FEWEST_FOR_DRIFT:
        return "unknown"
    change = shift(samples) or 0.0
    if abs(change) <= DRIFT_SHARE or trend_chance(samples) >= DRIFT_LEVEL:
        return "none"
    return "rising" if change > 0 else "falling"


def _spread(count: int) -> int:
    return count * (count - 1) * (2 * count + 5)


def _ties(ordered: Sequence[float]) -> list[int]:
    """The counts of values that occur more than once."""
    counts: list[int] = []
    start = 0
    while start < len(ordered):
        end = bisect_right(ordered, ordered[start])
        if end - start > 1:
            counts.append(end - start)
        start = end
    return counts
