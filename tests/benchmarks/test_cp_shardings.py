"""Tests of the estimates for shardings, at a small size."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.band.step_costs import counts
from benchmarks.band.tables import Record, wide
from benchmarks.cp import shardings as cp_shardings
from longca.masks import build_mask
from tools.table import read_records

COSTS_MS = np.array([1.5e-3, 2e-3, 0.1])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With times that these costs make."""
    records = [
        Record(8192, mask, 0.0, "64:8", "fwd", "band")
        for mask in ("full", "causal", "sliding_window", "causal_sliding_window")
    ]
    records = [
        Record(*record.case, record.kernel, float(counts(record) @ COSTS_MS), 0.0, 1.0) for record in records
    ]
    wide(records).save(tmp_path)
    return tmp_path


def test_lines_are_there_with_the_chosen_one_first(folder: Path) -> None:
    assert (
        cp_shardings.main(
            [str(folder), "--tokens", "1K", "--masks", "causal,full", "--most", "3", "--out", str(folder)]
        )
        == 0
    )
    lines = read_records(folder, "cp_shardings")
    assert len(lines) == 2 * 3 * 3 and {line["placement"] for line in lines[:9:3]} == {"zigzag"}
    assert all(
        float(line["most_ms"]) >= float(line["mean_ms"]) > 0 and 0 < float(line["share"]) < 1
        for line in lines
    )


def test_kernels_take_what_their_steps_do(folder: Path) -> None:
    assert cp_shardings.costs_of(folder) == pytest.approx(COSTS_MS)
    mask = build_mask(
        "full", seqlen=2048
    )  # 8 KV heads × 128 pieces of 16 full steps each, on 132 multiprocessors
    assert cp_shardings.kernel_ms(mask, COSTS_MS) == pytest.approx(8 * 16 * 1.5e-3 + 0.1)


def test_without_times_there_is_nothing_to_go_by(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"benchmarks\.band"):
        cp_shardings.costs_of(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        cp_shardings.main([str(tmp_path)])


def test_too_few_masks_are_refused(tmp_path: Path) -> None:
    wide([Record(32768, "full", 0.0, "64:8", "fwd", "band", 1.0, 0.0, 1.0)]).save(tmp_path)
    with pytest.raises(ValueError, match="0 masks timed forward at 8K"):
        cp_shardings.costs_of(tmp_path)
