"""Tests of alternating rounds, on the test's own clock."""

import itertools

import pytest

from benchmarks.common.rounds import MIN_ROUNDS, difference, in_rounds, iqr


def test_each_round_begins_with_another_way() -> None:
    log: list[str] = []
    in_rounds({name: lambda name=name: log.append(name) for name in "abc"}, 4)
    assert "".join(log) == "abcbcacababc"


def test_a_drift_hits_all_ways_alike() -> None:
    """A clock that slows down by 1 % a call makes the last call 20 % longer than the first; the difference
    hardly shows it."""
    slow = itertools.count()
    actual = in_rounds({"a": lambda: 2.0 * 1.01 ** next(slow), "b": lambda: 1.0 * 1.01 ** next(slow)}, 10)
    assert max(actual["b"]) / min(actual["b"]) > 1.15
    assert difference(actual["a"], actual["b"]).relative == pytest.approx(1.0, abs=0.011)


def test_time_ends_the_rounds_but_not_the_first_five() -> None:
    now = itertools.count(0, 10)
    assert len(in_rounds({"a": lambda: 1}, 50, max_seconds=1, now=lambda: next(now))["a"]) == MIN_ROUNDS
    now = itertools.count(0, 1)
    assert len(in_rounds({"a": lambda: 1}, 50, max_seconds=3, now=lambda: next(now))["a"]) == 3 + MIN_ROUNDS
    assert len(in_rounds({"a": lambda: 1}, 3)["a"]) == 3


def test_difference_is_paired() -> None:
    change = difference([11.0, 22.0, 44.0], [10.0, 20.0, 40.0])
    assert change.relative == pytest.approx(0.1) and change.iqr == pytest.approx(0.0)
    with pytest.raises(ValueError, match="zip"):
        difference([1.0], [1.0, 2.0])


def test_distance_between_the_quartiles() -> None:
    assert iqr([1.0]) == 0.0
    assert iqr([1.0, 2.0, 3.0, 4.0, 5.0]) == 2.0
