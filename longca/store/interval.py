"""The interval of a median, from its samples alone: two order statistics, without any assumption about their
distribution."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import comb, floor, sqrt

CONFIDENCE = 0.95
MOST_EXACT = (
    1000  # samples up to which the binomial distribution is summed; of more its normal limit is exact enough
)


def median_interval(samples: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the median of the distribution that the samples are from.

    Of fewer than 6 samples no interval reaches 95 %: it is the range of all, which holds the median with 1 −
    2^(1 − n): 94 % of 5, 75 % of 3. Of one sample it has no width.

    Args:
        samples: at least one, in any order and unit.
    """
    ordered = sorted(samples)
    outside = _outside(len(ordered))
    return ordered[outside], ordered[-1 - outside]


@lru_cache(maxsize=256)
def _outside(count: int) -> int:
    """The number of samples on each side that the interval leaves out."""
    if count > MOST_EXACT:
        return max(floor((count - 1.96 * sqrt(count)) / 2) - 1, 0)
    tail, outside = 0, -1
    for index in range(count // 2):
        tail += comb(count, index)
        if 2 * tail > (1 - CONFIDENCE) * 2**count:
            break
        outside = index
    return max(outside, 0)
