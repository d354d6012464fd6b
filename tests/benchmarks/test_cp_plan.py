"""Tests of the table of context-parallel plans, at a small size."""

from pathlib import Path

from benchmarks.cp import plan_costs as cp_plan
from tests.cp.case import STATIC_MASKS
from tools.table import read_records


def test_a_line_for_each_mask_and_schedule(tmp_path: Path):
    assert cp_plan.main(["--ranks", "3", "--tokens", "1K", "--documents", "7", "--out", str(tmp_path)]) == 0
    records = read_records(tmp_path, "cp_plan")
    assert {(line["mask"], line["schedule"]) for line in records} == {
        (mask, schedule) for mask in STATIC_MASKS for schedule in cp_plan.SCHEDULES
    }
    assert all(
        float(line["slowest_ms"]) >= float(line["plan_ms"]) > 0 and float(line["imbalance"]) >= 1
        for line in records
    )
    assert {line["received"] for line in records if line["mask"] == "full"} == {"1.0"}
