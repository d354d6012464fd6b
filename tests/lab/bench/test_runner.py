"""The run: what is measured, what is kept, and that nothing finished is ever lost."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from longca.core.errors import UserError
from longca.core.schema import Work
from longca.lab.bench.measure.result import Result
from longca.lab.bench.run import runner
from longca.lab.bench.run.progress import PlainProgress
from longca.lab.bench.run.runner import run_cells
from longca.lab.bench.run.summary import Summary
from longca.lab.bench.workers.process import ending_signals
from longca.lab.store.cells import CellStore
from longca.lab.studies.cell import Cell
from longca.lab.studies.config import Config
from longca.lab.studies.grid import Grid
from longca.lab.studies.masks import cell_mask
from longca.lab.studies.outcome import Failed, Unsupported
from longca.lab.studies.record import MaskFacts
from longca.lab.studies.study import Study
from longca.lab.studies.tables import mask_table
from tests.helpers.bench.cells import small_cell
from tests.helpers.bench.fake_pool import FakePool
from tests.helpers.bench.misbehaving import MEASURE, kernel_cell
from tests.lab.bench.test_worker import wait_until_gone

RUN = """
import json, pathlib, sys
from longca.lab.bench.run.runner import run_cells
from longca.lab.studies.config import Config
from tests.helpers.bench.misbehaving import kernel_cell
from tests.lab.bench.test_runner import STUDY
from longca.lab.bench.run.progress import PlainProgress
cells = [kernel_cell(kernel, seqlen) for kernel, seqlen in json.loads(sys.argv[2])]
print(run_cells(STUDY, cells, Config(results=pathlib.Path(sys.argv[1]), device="cpu", progress="plain", disturbed="keep")))
"""  # noqa: E501
STUDY = Study(
    name="tiny", seed=7, measure=MEASURE, grids=(Grid(kernel="quick", mask="causal", seqlen=32, heads="2:1"),)
)
CELLS = [kernel_cell(kernel, seqlen) for kernel in ("quick", "naive") for seqlen in (16, 32, 48)]


@pytest.fixture(autouse=True)
def _signals_as_in_a_terminal():
    """Also where the tests themselves were started in the background, which ignores some."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGHUP, signal.SIGQUIT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def run(tmp_path, monkeypatch, plugins) -> Callable[..., Summary]:
    """run(...) → the summary of a run over CELLS in a pool that answers at once."""
    monkeypatch.setattr(runner, "Pool", FakePool)
    monkeypatch.setattr(
        runner.MethodVersions,
        "of",
        lambda self, cells: lambda device: {cell.cell_id: f"1 {device}" for cell in cells},
    )
    FakePool.outcome = staticmethod(lambda cell: Result(outcome=Unsupported(reason="fake")))

    def start(cells: list[Cell] = CELLS, stream: io.StringIO | None = None, **options: object) -> Summary:
        return run_cells(
            STUDY,
            cells,
            Config(results=tmp_path, device="cpu"),
            progress=PlainProgress(stream or io.StringIO()),
            **options,
        )

    return start


def mtimes(store: CellStore) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in store.cells.glob("*/*.json")}


def test_finished_cells_are_kept_as_they_are(run, store):
    first = run(CELLS[:4])
    assert first.counts["unsupported"] == first.num_measured == 4 and first.num_kept == 0
    before = mtimes(store)
    second = run()
    assert (second.num_measured, second.num_kept) == (2, 4) and second.counts["unsupported"] == 6
    assert set(FakePool.measured) == set(CELLS[4:])
    assert {path: mtime for path, mtime in mtimes(store).items() if path in before} == before
    assert second.run_id != first.run_id and str(second).startswith(
        "6 cells: 6 unsupported (2 measured in 0:00:0"
    )
    record = store.read(CELLS[0].cell_id)
    assert (record.study, record.run_id, record.method_version) == ("tiny", first.run_id, "1 fake")


def test_some_statuses_are_measured_again_if_asked(run):
    FakePool.outcome = staticmethod(
        lambda cell: Result(
            outcome=Failed(type="E", message="m") if cell.kernel == "naive" else Unsupported(reason="r")
        )
    )
    run()
    again = run(retry={"error", "timeout"})
    assert {cell.kernel for cell in FakePool.measured} == {"naive"} and (
        again.num_measured,
        again.num_kept,
    ) == (3, 3)
    assert again.counts["error"] == again.counts["unsupported"] == 3
    assert run(force=True).num_measured == 6


def test_another_method_is_measured_again(run, monkeypatch):
    run()
    monkeypatch.setattr(
        runner.MethodVersions,
        "of",
        lambda self, cells: (
            lambda device: {cell.cell_id: "2" if cell.seqlen == 16 else f"1 {device}" for cell in cells}
        ),
    )
    assert run().num_measured == 2 and {cell.seqlen for cell in FakePool.measured} == {16}


def test_a_damaged_record_is_named_and_measured_again(run, store):
    run()
    path = store.path(CELLS[0].cell_id)
    path.write_text(path.read_text()[:40])
    stream = io.StringIO()
    assert run(stream=stream).num_measured == 1 and FakePool.measured == [CELLS[0]]
    assert f"Measured again: {path}: is damaged" in stream.getvalue()
    assert store.read_all()[1] == []


def test_a_mask_other_than_the_studys_is_a_failure(run, store, tmp_path):
    def measured(cell: Cell) -> Result:
        mask = cell_mask(cell)
        return Result(
            outcome=Unsupported(reason="r"),
            notes=("kept",),
            mask=MaskFacts(digest=mask.digest, area=mask.area, num_groups=1, num_bands=1),
        )

    FakePool.outcome = staticmethod(measured)
    rows = mask_table(CELLS)
    rows[0]["digest"] = "0" * 16
    path = tmp_path / "tiny" / "masks.json"
    path.parent.mkdir()
    path.write_text(json.dumps(rows))
    assert run().counts["error"] == 2  # two kernels on one mask
    record = store.read(CELLS[0].cell_id)
    assert record.outcome.type == "MaskMismatch" and cell_mask(CELLS[0]).digest in record.outcome.message
    assert record.mask.digest != "0" * 16 and record.notes == ("kept",)
    path.write_text("[{]")
    with pytest.raises(UserError, match=r"masks.json'.*damaged"):
        run(force=True)


def test_a_full_disk_ends_the_run_and_keeps_the_rest(run, store, monkeypatch):
    run(CELLS[:3])
    before = mtimes(store)
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(UserError, match="No space left on device"):
        run()
    assert mtimes(store) == before


def start_run(tmp_path: Path, cells: list[tuple[str, int]]) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", RUN, str(tmp_path), json.dumps(cells)],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def wait_for(number: int, store: CellStore, run: subprocess.Popen) -> None:
    deadline = time.monotonic() + 120
    while len(mtimes(store)) < number:
        assert time.monotonic() < deadline and run.poll() is None, run.communicate()
        time.sleep(0.02)


def workers_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.long
def test_kill_9_loses_at_most_the_cell_in_flight(plugins, tmp_path, store):
    cells = [("slow", seqlen) for seqlen in range(8, 18)]
    first = start_run(tmp_path, cells)
    wait_for(3, store, first)
    processes = workers_of(first.pid)
    assert len(processes) == 3, "the worker, the judge and what forks both"
    first.kill()
    first.communicate()
    for process in processes:
        wait_until_gone(process)
    before = mtimes(store)
    assert 3 <= len(before) < len(cells) and store.read_all()[1] == []
    second = start_run(tmp_path, cells)
    output, errors = second.communicate(timeout=120)
    assert (
        second.returncode == 0 and output.startswith("10 cells: 10 ok") and f"{len(before)} before" in output
    ), errors
    assert {path: mtime for path, mtime in mtimes(store).items() if path in before} == before
    records, problems = store.read_all()
    assert len(records) == 10 and not problems and len({record.run_id for record in records}) == 2
    assert all(record.environment.source.version for record in records)


@pytest.mark.long
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGHUP,
        *(
            pytest.param(number, marks=pytest.mark.slow)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)
        ),
    ],
)
def test_a_signal_stops_the_run_and_its_workers(plugins, tmp_path, store, number):
    run = start_run(tmp_path, [("quick", 16), ("sleeper", 16), ("sleeper", 24)])
    deadline = time.monotonic() + 120
    while "sleeper" not in "".join(path.read_text() for path in store.folder.glob("logs/*/*.log")):
        assert time.monotonic() < deadline and run.poll() is None, run.communicate()
        time.sleep(0.02)
    workers = workers_of(run.pid)
    run.send_signal(number)
    _, errors = run.communicate(timeout=60)
    assert (
        run.returncode != 0 and "KeyboardInterrupt" in errors and "cells to do: run again to go on" in errors
    )
    for worker in workers:
        wait_until_gone(worker)
    assert store.read_all()[1] == []
    with store.lock():
        pass


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGQUIT])
def test_a_run_that_was_started_to_ignore_a_signal_goes_on_ignoring_it(number):
    """As `nohup` starts it."""
    assert number in ending_signals()
    signal.signal(number, signal.SIG_IGN)
    assert number not in ending_signals() and signal.SIGTERM in ending_signals()


@pytest.mark.long
def test_two_runs_at_once(plugins, tmp_path, store):
    first = start_run(tmp_path, [("sleeper", 16)])
    while not (store.folder / "logs").exists():
        assert first.poll() is None
        time.sleep(0.02)
    second = start_run(tmp_path, [("quick", 16)])
    _, errors = second.communicate(timeout=60)
    first.kill()
    first.communicate()
    assert (
        second.returncode != 0
        and f"Another run is writing '{store.folder}': pid {first.pid} on " in errors.splitlines()[-1]
    )


def test_the_runner_needs_no_torch():
    program = (
        "import sys, longca.lab.bench.run.runner; "
        "print([m for m in ('torch', 'pandas', 'matplotlib', 'rich') if m in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", program], check=True, capture_output=True, text=True
        ).stdout.strip()
        == "[]"
    )


def test_what_a_control_does_stands_in_its_record_whatever_came_of_it(run, store):
    cells = [small_cell("matmul", "full", seqlen=8), small_cell("naive", "full", seqlen=8)]
    run(cells)
    works = [store.read(cell.cell_id).work for cell in cells]
    assert works == [Work(flops=2 * 8**3), None]
