"""The end of `longca run`: its tables, its JSON and its exit code, over a study's records. Nothing is
measured."""

import json
from collections import Counter
from pathlib import Path

import pytest

from longca.lab.bench.run import runner
from longca.lab.bench.run.scores import Score, Scoreboard, ShortNames
from longca.lab.bench.run.summary import Summary
from longca.lab.store.export import export
from longca.lab.studies.cell import Cell
from longca.lab.studies.outcome import STATUSES, Ok, TimedOut, Unavailable
from longca.lab.studies.record import Record
from longca.lab.studies.study import load_study
from tests.helpers.command import called
from tests.helpers.records import quick_study, record

NO_NAMES = ShortNames([])
ENVIRON = {"LONGCA_DEVICE": "cpu", "COLUMNS": "80"}


@pytest.fixture
def end(monkeypatch, tmp_path):
    """end(records, *options) → the finished command, as if a run had made these records."""

    def command(records: list[Record], *options: str):
        counts = Counter(record.outcome.status for record in records)
        summary = Summary(
            "20261123T083453Z-ea405c",
            {status: counts[status] for status in STATUSES},
            len(records),
            0,
            61.0,
            Scoreboard([Score.of(record) for record in records]),
            Path("results/quick/logs/20261123T083453Z-ea405c"),
            ShortNames([record.cell for record in records]),
        )
        monkeypatch.setattr(runner, "run_cells", lambda *_, **__: summary)
        return called(["run", "quick", *options], {**ENVIRON, "LONGCA_RESULTS": str(tmp_path)})

    return command


def test_failed_cells_are_named_and_are_a_verdict(end):
    done = end(quick_study())
    assert done.returncode == 1
    assert max(len(line.rstrip()) for line in done.stdout.splitlines() if "longca run" not in line) <= 80, (
        "commands are not wrapped"
    )
    assert "incorrect: sdpa fwd 2K prefix_lm" in done.stdout and "timeout: naive" in done.stdout
    assert "longca run quick --retry incorrect,implausible,error,timeout" in done.stdout
    assert done.stdout.rstrip().endswith("Next: longca report quick")
    assert end(quick_study(), "--exit-zero").returncode == 0


def test_a_stage_of_the_workflow_does_not_ask_for_the_page_that_comes_next(end, tmp_path):
    assert "Next:" not in end(quick_study(), "--stamp", str(tmp_path / "stamp")).stdout


def test_without_failures_it_ends_well(end):
    records = [
        record
        for record in quick_study()
        if record.outcome.status in ("ok", "unsupported", "unavailable", "oom")
    ]
    done = end(records)
    assert done.returncode == 0 and "--retry" not in done.stdout and "*" in done.stdout


def test_json_is_one_object_with_every_cell(end):
    done = end(quick_study(), "--json")
    content = json.loads(done.stdout)
    assert done.returncode == 1 and len(content["cells"]) == content["num_measured"] == len(quick_study())
    assert content["counts"]["incorrect"] == 1 and content["left_out"] == []
    timed = [
        cell
        for cell in content["cells"]
        if cell["status"] == "ok" and cell["kernel"] in ("naive", "sdpa", "flex")
    ]
    assert all(0 < cell["share_of_best"] <= 1 and cell["time_ms"] > 0 for cell in timed)


def test_cells_with_records_elsewhere_are_left_out(monkeypatch, tmp_path):
    """But not those of a kernel that was not there, nor those that are to be tried again."""
    study = load_study("quick")
    ok, gone, late, new = study.cells()[:4]
    records = [
        record(cell, outcome)
        for cell, outcome in (
            (ok, Ok()),
            (gone, Unavailable(reason="no such package")),
            (late, TimedOut(seconds=60.0)),
        )
    ]
    export(records, tmp_path / "home")
    asked: list[list[Cell]] = []

    def run_cells(_, cells: list[Cell], *__, **___) -> Summary:
        asked.append(cells)
        return Summary(
            "20261123T083453Z-ea405c",
            dict.fromkeys(STATUSES, 0),
            0,
            0,
            1.0,
            Scoreboard([]),
            tmp_path,
            NO_NAMES,
        )

    monkeypatch.setattr(runner, "run_cells", run_cells)
    file = str(tmp_path / "home/records.parquet")
    for options, left in (((), {gone, new}), (("--retry", "timeout"), {gone, late, new})):
        done = called(
            ["run", "quick", "--known", file, *options], {**ENVIRON, "LONGCA_RESULTS": str(tmp_path)}
        )
        assert (
            done.returncode == 0
            and f"{4 - len(left)} of {len(study.cells())} cells are known from" in done.stderr
        )
        assert {ok, gone, late, new} & set(asked[-1]) == left
    (tmp_path / "damaged.parquet").write_text("PAR1")
    for name, said in (
        ("nowhere.parquet", "There is no file"),
        ("damaged.parquet", "is damaged or no table of records"),
    ):
        done = called(["run", "quick", "--known", str(tmp_path / name)], ENVIRON)
        assert done.returncode == 2 and said in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_broken_plugin_is_left_out_of_a_study_and_alone_it_is_an_error(monkeypatch, tmp_path):
    (tmp_path / "plugins/kernels").mkdir(parents=True)
    (tmp_path / "plugins/kernels/broken.py").write_text("raise OSError('no library')\n")
    monkeypatch.setenv("LONGCA_PLUGINS", str(tmp_path / "plugins"))
    study = tmp_path / "study.yaml"
    study.write_text("grids: [{kernel: [naive, broken], mask: causal, seqlen: 64, heads: 2}]\n")
    asked = []

    def run_cells(_, cells, *__, **___):
        asked.extend(cell.kernel for cell in cells)
        return Summary("run", dict.fromkeys(STATUSES, 0), 0, 0, 0.0, Scoreboard(), tmp_path, NO_NAMES)

    monkeypatch.setattr(runner, "run_cells", run_cells)
    done = called(["run", str(study), "--json"], {**ENVIRON, "LONGCA_RESULTS": str(tmp_path)})
    assert done.returncode == 1 and asked == ["naive", "naive"]
    assert "no library" in json.loads(done.stdout)["left_out"][0] and "broken.py:1 in <module>" in done.stderr
    alone = called(["run", str(study), "-k", "broken"], ENVIRON)
    assert (
        alone.returncode == 2
        and len(alone.stderr.splitlines()) == 1
        and "broken.py:1 in <module>" in alone.stderr
    )
    assert called(["plan", str(study)], ENVIRON).returncode == 0
