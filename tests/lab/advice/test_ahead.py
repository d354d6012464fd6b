"""Predictions that were written down before anybody measured: none of their cells has a record, and they are
checked as written."""

import csv
import json
import subprocess
import sys

import pytest

from longca.lab.store.load import load
from longca.lab.studies.study import load_study
from tests.support import ROOT

PAGES = {"h100": "two-gpus.md", "h200": "prediction.md"}


@pytest.fixture(params=PAGES)
def gpu(request) -> str:
    return request.param


@pytest.fixture
def lines(gpu) -> dict[str, dict[str, str]]:
    with (ROOT / f"docs/results/{gpu}/predicted_ahead.csv").open(encoding="utf-8", newline="") as file:
        return {row["cell_id"]: row for row in csv.DictReader(file)}


def test_they_are_cells_of_the_study_and_of_no_record_that_they_are_fitted_on(gpu, lines):
    cells = {cell.cell_id: cell for cell in load_study("ahead").cells()}
    assert len(lines) > 80 and lines.keys() <= cells.keys()
    fitted_on = json.loads((ROOT / f"longca/predict/models/{gpu}.json").read_text(encoding="utf-8"))[
        "records"
    ]
    assert not lines.keys() & {
        record.cell_id
        for name in fitted_on
        for record in load(ROOT / f"reports/{gpu}/{name}.parquet").records
    }
    assert all(
        float(row["low_ms"]) < float(row["predicted_ms"]) < float(row["high_ms"]) for row in lines.values()
    )


@pytest.mark.parametrize(("study", "ranks"), [("h200-cp", 4), ("h200-cp8", 8)])
def test_what_waits_for_more_gpus_are_cells_of_its_study(study, ranks):
    cells = {cell.cell_id: cell for cell in load_study(study).cells()}
    with (ROOT / f"docs/results/h100/predicted_{study}.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 300 and {cells[row["cell_id"]].world for row in rows} == {ranks}
    assert all(float(row["low_ms"]) <= float(row["predicted_ms"]) <= float(row["high_ms"]) for row in rows)


def test_the_page_has_them(gpu, lines):
    page = (ROOT / f"docs/results/{gpu}/{PAGES[gpu]}").read_text(encoding="utf-8")
    block = page.partition("<!-- begin predict_ahead -->")[2].partition("<!-- end predict_ahead -->")[0]
    assert (
        block.count("\n| ") == len(lines) + 2
        and f"{len(lines)} cells, predicted before any was measured" in block
    )


def test_committed_records_are_checked_as_the_page_says(tmp_path):
    command = [
        sys.executable,
        "-m",
        "benchmarks.predict.ahead",
        "--gpu",
        "H100 SXM",
        "--check",
        "reports/h100/ahead.parquet",
        "--out",
        str(tmp_path),
    ]
    subprocess.run(command, capture_output=True, check=True, cwd=ROOT)
    page = (ROOT / "docs/results/h100/two-gpus.md").read_text(encoding="utf-8")
    assert (tmp_path / "predict_ahead.md").read_text(encoding="utf-8") in page


def test_records_of_other_studies_tell_nothing(tmp_path):
    command = [
        sys.executable,
        "-m",
        "benchmarks.predict.ahead",
        "--check",
        "reports/h200/power.parquet",
        "--out",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert (
        done.returncode == 0
        and "that were measured since" not in done.stdout
        and "predicted before any was measured" in done.stdout
    )
