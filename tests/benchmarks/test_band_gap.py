"""Costs by least squares."""

import numpy as np
import pytest

from benchmarks.band_gap import COSTS, counts, fit, gaps
from benchmarks.band_table import Record

MASKS = ("full", "causal", "causal_sliding_window", "sliding_window", "causal_document")
COSTS_US = np.array([1.5, 2.0, 3.0])


def record(mask: str, kernel: str = "band", direction: str = "fwd", time_ms: float | None = None) -> Record:
    return Record(8192, mask, 0.0, "64:8", direction, kernel, time_ms)


def test_costs_that_made_the_times_are_found() -> None:
    for direction in ("fwd", "bwd"):
        records = [record(mask, kernel, direction, float(counts(record(mask, direction=direction)) @ COSTS_US) / 1e3 * slower)
                   for mask in MASKS for kernel, slower in (("band", 1), ("flex", 2))]
        ours, other = gaps(records).records
        assert [ours[cost] for cost in COSTS] == pytest.approx(COSTS_US) and ours["deviation"] < 1e-9
        assert [other[cost] for cost in COSTS] == pytest.approx(2 * COSTS_US)


def test_steps_of_a_full_mask() -> None:
    """8 KV heads, 512 pieces of 16 tokens × 8 heads, 64 steps of 128 keys each; backward 64 pieces of 128 keys, 1024 steps of 8 tokens."""
    assert counts(record("full")) * 132 == pytest.approx([8 * 512 * 64, 0, 8 * 512])
    assert counts(record("full", direction="bwd")) * 132 == pytest.approx([8 * 64 * 1024, 0, 8 * 64])


def test_no_cost_is_negative() -> None:
    work = np.array([[1.0, 0.0, 1.0], [2.0, 0.0, 1.0], [3.0, 1.0, 1.0], [4.0, 1.0, 1.0]])
    costs, deviation = fit(work, np.array([1.0, 3.0, 5.0, 7.0]))
    assert (costs >= 0).all() and deviation > 0


def test_too_few_masks_have_no_costs() -> None:
    assert not gaps([record(mask, time_ms=1.0) for mask in MASKS[:3]]).rows
