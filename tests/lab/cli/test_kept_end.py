"""The end of a run that had nothing to do is said again, without a run, until something changes."""

import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from longca.lab.bench.run import runner
from longca.lab.bench.run.repeats import RepeatCounts
from longca.lab.bench.run.scores import Score, Scoreboard, ShortNames
from longca.lab.bench.run.summary import Summary
from longca.lab.store import index
from longca.lab.store.cells import CellStore
from longca.lab.studies.outcome import STATUSES
from tests.helpers.command import called
from tests.helpers.records import quick_study

CELLS = quick_study()


class Runs:
    """Commands `longca run quick` on one folder of results, and how often one of them has run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0
        self.num_measured = 0
        self.repeats: RepeatCounts | None = None
        self.environ = {"LONGCA_DEVICE": "cpu", "COLUMNS": "80", "LONGCA_RESULTS": str(folder)}
        for record in CELLS:
            CellStore(folder / "quick").write(record)

    def run_cells(self, *_: object, **__: object) -> Summary:
        self.count += 1
        counts = Counter(record.outcome.status for record in CELLS)
        return Summary(
            run_id="20261123T083453Z-ea405c",
            counts={status: counts[status] for status in STATUSES},
            num_measured=self.num_measured,
            num_kept=len(CELLS) - self.num_measured,
            seconds=61.0,
            board=Scoreboard([Score.of(record) for record in CELLS]),
            logs=self.folder / "quick/logs/20261123T083453Z-ea405c",
            names=ShortNames([record.cell for record in CELLS]),
            headline=f"{len(CELLS)} cells: all measured before",
            repeats=self.repeats,
        )

    def call(self, *options: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return called(["run", "quick", *options], {**self.environ, **environ})


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runs:
    made = Runs(tmp_path)
    monkeypatch.setattr(index, "FEWEST", 1)
    monkeypatch.setattr(runner, "run_cells", made.run_cells)
    return made


def test_the_same_is_said_with_the_same_exit_code(runs: Runs) -> None:
    first = runs.call()
    again = runs.call()
    assert runs.count == 1
    assert (again.stdout, again.returncode) == (first.stdout, 1)
    assert "(0 measured, " in again.stdout and "incorrect: sdpa" in again.stdout
    assert again.stderr.splitlines() == [f"{len(CELLS)} cells: all measured before"]
    assert runs.call("--exit-zero").returncode == 0


def test_what_was_measured_now_is_not_kept(runs: Runs) -> None:
    runs.num_measured = 1
    runs.call()
    runs.num_measured = 0
    runs.repeats = RepeatCounts(num_measured=1)
    runs.call()
    runs.repeats = None
    runs.call()
    assert runs.count == 3
    runs.call()
    assert runs.count == 3


@pytest.mark.parametrize(
    "options", [("-k", "naive"), ("--retry", "error"), ("--force",), ("--json",), ("--no-playoff",)]
)
def test_other_options_ask_anew(runs: Runs, options: tuple[str, ...]) -> None:
    runs.call()
    runs.call(*options)
    assert runs.count == 2


def test_a_changed_cell_a_new_repeat_and_a_lost_cell_ask_anew(runs: Runs) -> None:
    runs.call()
    CellStore(runs.folder / "quick").write(CELLS[0].model_copy(update={"seconds": 7.0}))
    runs.call()
    assert runs.count == 2
    (runs.folder / "quick/repeats").mkdir()
    (runs.folder / "quick/repeats/new.jsonl").write_text("{}\n")
    runs.call()
    assert runs.count == 3
    cell_id = CELLS[0].cell_id
    (runs.folder / f"quick/cells/{cell_id[:2]}/{cell_id}.json").unlink()
    runs.call()
    assert runs.count == 4


def test_another_terminal_environment_or_study_asks_anew(runs: Runs) -> None:
    runs.call()
    runs.call(COLUMNS="120")
    runs.call(LONGCA_CONTAINER="sha256:other")
    assert runs.count == 3


def test_own_plugins_are_never_answered_for(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "plugins/kernels").mkdir(parents=True)
    (tmp_path / "plugins/kernels/mine.py").write_text("from longca.kernels.backends.naive import Naive\n")
    for _ in range(2):
        runs.call(LONGCA_PLUGINS=str(tmp_path / "plugins"))
    assert runs.count == 2


def test_a_damaged_answer_is_made_anew(runs: Runs) -> None:
    first = runs.call()
    kept = runs.folder / "quick/cells/.run.json"
    kept.write_bytes(kept.read_bytes().replace(b"incorrect", b"fantastic"))
    assert runs.call().stdout == first.stdout
    assert runs.count == 2
    os.truncate(kept, 10)
    assert runs.call().stdout == first.stdout
    assert runs.count == 3
