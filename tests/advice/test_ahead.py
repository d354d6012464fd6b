"""Predictions that were written down before anybody measured: none of their cells has a record, and they are checked as written."""

import subprocess
import sys

import pytest

from longca.core.study import load_study
from longca.store.load import load
from tests.support import ROOT

PREDICTED = ROOT / "docs/results/h200/predicted_ahead.csv"


@pytest.fixture(scope="module")
def lines() -> dict[str, dict[str, str]]:
    import csv

    with PREDICTED.open(encoding="utf-8", newline="") as file:
        return {row["cell_id"]: row for row in csv.DictReader(file)}


def test_they_are_cells_of_the_study_and_of_no_record(lines):
    cells = {cell.cell_id: cell for cell in load_study("ahead").cells()}
    assert len(lines) > 80 and lines.keys() <= cells.keys()
    assert not lines.keys() & {record.cell_id for record in load(ROOT / "reports/h200/h200-cp.parquet").records}
    assert all(float(row["low_ms"]) < float(row["predicted_ms"]) < float(row["high_ms"]) for row in lines.values())


def test_the_page_has_them(lines):
    page = (ROOT / "docs/results/h200/prediction.md").read_text(encoding="utf-8")
    block = page.partition("<!-- begin predict_ahead -->")[2].partition("<!-- end predict_ahead -->")[0]
    assert block.count("\n| ") == len(lines) + 2 and f"{len(lines)} cells, predicted before any was measured" in block


def test_records_of_other_studies_tell_nothing(tmp_path):
    command = [sys.executable, "-m", "benchmarks.predict.ahead", "--check", "reports/h200/power.parquet", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0 and "that were measured since" not in done.stdout and "predicted before any was measured" in done.stdout
