"""Tests of the costs of blocks and calls by least squares."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.band.step_costs import counts, fit, gaps, main
from benchmarks.band.tables import Record

MASKS = ("full", "causal", "causal_sliding_window", "sliding_window", "causal_document")
COSTS_MS = np.array([1.5e-3, 2e-3, 0.1])


def record(mask: str, kernel: str = "band", direction: str = "fwd", time_ms: float | None = None) -> Record:
    return Record(8192, mask, 0.0, "64:8", direction, kernel, time_ms)


def test_costs_that_made_the_times_are_found() -> None:
    for direction in ("fwd", "bwd"):
        records = [
            record(
                mask, kernel, direction, float(counts(record(mask, direction=direction)) @ COSTS_MS) * slower
            )
            for mask in MASKS
            for kernel, slower in (("band", 1), ("flex", 2))
        ]
        for line, slower in zip(gaps(records).records, (1, 2), strict=True):
            values = np.array([line["full_step_us"] / 1e3, line["partial_step_us"] / 1e3, line["call_ms"]])
            assert values == pytest.approx(COSTS_MS * slower)
            assert line["deviation"] < 1e-9


def test_steps_of_a_full_mask() -> None:
    """8 KV heads, 512 pieces of 16 tokens × 8 heads, 64 steps of 128 keys each; backward 64 pieces of 128
    keys, 1024 steps of 8 tokens."""
    assert counts(record("full")) == pytest.approx([8 * 512 * 64 / 132, 0, 1])
    assert counts(record("full", direction="bwd")) == pytest.approx([8 * 64 * 1024 / 132, 0, 1])


def test_no_cost_is_negative() -> None:
    work = np.array([[1.0, 0.0, 1.0], [2.0, 0.0, 1.0], [3.0, 1.0, 1.0], [4.0, 1.0, 1.0]])
    costs, deviation = fit(work, np.array([1.0, 3.0, 5.0, 7.0]))
    assert (costs >= 0).all() and deviation > 0


def test_too_few_masks_have_no_costs() -> None:
    assert not gaps([record(mask, time_ms=1.0) for mask in MASKS[:3]]).rows


def test_without_times_a_page_stays_as_it_is(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- begin band_step_costs -->\nold\n<!-- end band_step_costs -->\n")
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path), "--write", str(page), "--out", str(tmp_path)])
    assert "old" in page.read_text()
