"""Statistics of samples, on samples whose median and drift are known."""

import math
import random
from collections.abc import Callable
from statistics import median

import pytest

from longca.lab.studies.samples import drift, median_interval, median_precision, shift, trend_chance

Draw = Callable[[random.Random], float]
NOISE: dict[str, Draw] = {
    "symmetric": lambda chance: 10 * (1 + 0.01 * chance.gauss(0, 1)),
    "skewed": lambda chance: 10 * (1 + 0.01 * chance.expovariate(1)),
    "outliers": lambda chance: (
        10 * (1 + 0.01 * chance.gauss(0, 1)) * (1 if chance.random() < 0.9 else 1 + chance.random())
    ),
    "rounded": lambda chance: round(10 * (1 + 0.002 * chance.gauss(0, 1)), 2),
    "two clocks": lambda chance: (10 if chance.random() < 0.7 else 10.3) * (1 + 0.002 * chance.gauss(0, 1)),
}
ISSUE = (138, 138, 139, 156, 161)
"""times in ms as an H100 gave them, one after another, without rests"""


@pytest.mark.parametrize("noise", NOISE)
def test_the_interval_holds_the_median_of_all_there_could_be(noise: str) -> None:
    chance = random.Random(1)
    true = median(NOISE[noise](chance) for _ in range(50_001))
    for count in (10, 20, 57):
        intervals = [median_interval([NOISE[noise](chance) for _ in range(count)]) for _ in range(1500)]
        share = sum(
            interval is not None and interval.low <= true <= interval.high for interval in intervals
        ) / len(intervals)
        assert share >= 0.93, f"{share:.3f} of {count} samples"


def test_the_interval_is_of_samples_and_needs_six() -> None:
    assert median_interval([3, 1, 2, 5, 4]) is None and median_precision([1, 2]) is None
    assert median_interval([6, 1, 5, 2, 4, 3]) == (1, 6)
    assert median_interval(range(1, 11)) == (2, 9), "P(fewer than 2 of 10 heads) = 11/1024"
    assert median_precision([100, 100, 100, 100, 101, 99]) == pytest.approx(0.01)


def test_ranks_of_many_samples_go_on_where_exact_ones_end() -> None:
    widths = [median_interval(range(count)) for count in (1000, 1001, 2000)]
    assert all(interval is not None for interval in widths)
    exact, approximate, twice = ((interval.high - interval.low) for interval in widths if interval)
    assert abs(approximate - exact) <= 2 and twice / exact == pytest.approx(math.sqrt(2), abs=0.05)


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("count", [10, 20, 60])
def test_steady_samples_seldom_drift(noise: str, count: int) -> None:
    chance = random.Random(2)
    actual = [drift([NOISE[noise](chance) for _ in range(count)]) for _ in range(2000)]
    assert sum(word != "none" for word in actual) / len(actual) <= 0.015


def test_a_clock_that_falls_is_found() -> None:
    """As the issue's example, with more samples of it and noise of 0.5 %."""
    chance = random.Random(3)

    def falling(count: int) -> list[float]:
        places = [4 * number / (count - 1) for number in range(count)]
        times = [
            ISSUE[int(place)] + (place % 1) * (ISSUE[min(int(place) + 1, 4)] - ISSUE[int(place)])
            for place in places
        ]
        return [time * (1 + 0.005 * chance.gauss(0, 1)) for time in times]

    for count in (10, 20, 40):
        assert sum(drift(falling(count)) == "rising" for _ in range(300)) >= 0.95 * 300
    assert drift(falling(20)[::-1]) == "falling"
    assert drift(ISSUE) == "unknown", "five samples in order are too few to tell"


def test_a_trend_without_size_is_none() -> None:
    times = [100 + 0.01 * number for number in range(60)]
    assert (
        trend_chance(times) < 1e-6
        and shift(times) == pytest.approx(0.004, abs=1e-4)
        and drift(times) == "none"
    )
    assert trend_chance([1.0] * 20) == 1.0 and drift([1.0] * 20) == "none"


def test_the_test_of_mann_and_kendall() -> None:
    """Ten values in order: score 45, variance 125; with ties the variance is less."""
    assert trend_chance(range(10)) == pytest.approx(math.erfc(44 / math.sqrt(2 * 125)))
    assert trend_chance([1, 1, 2, 2, 3, 3]) == pytest.approx(
        math.erfc(11 / math.sqrt(2 * (510 - 3 * 18) / 18))
    )
