"""The whole DAG over a tiny study, really run: to the page, again for nothing, and on after a kill."""

import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from longca.lab.store.cells import CellStore
from longca.lab.store.load import load
from tests.helpers.forked import snakemake
from tests.helpers.support import ROOT, TINY


@pytest.fixture
def dag(tmp_path: Path) -> list[str]:
    """Arguments of Snakemake."""
    study = tmp_path / "tiny.yaml"
    study.write_text(TINY)
    return [
        "--profile",
        "workflow/profiles/local",
        "--config",
        f"study={study}",
        f"results={tmp_path / 'results'}",
        "device=cpu",
    ]


def started(arguments: list[str]) -> subprocess.Popen[str]:
    """In a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "snakemake", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env={**os.environ, "CI": "1"},
        start_new_session=True,
    )


@pytest.mark.long
def test_whole_dag_goes_on_after_a_kill_and_then_has_nothing_to_do(dag: list[str], tmp_path: Path):
    folder = tmp_path / "results" / "tiny"
    first = started(dag)
    deadline = time.monotonic() + 200
    while len(list(folder.glob("cells/*/*.json"))) < 2:
        assert time.monotonic() < deadline and first.poll() is None, first.communicate()[0]
        time.sleep(0.05)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    kept = {path: path.stat().st_mtime_ns for path in folder.glob("cells/*/*.json")}
    second = snakemake(*dag, CI="1")
    assert second.returncode == 0, second.stdout + second.stderr
    for name in (
        "corpora.json",
        "masks.json",
        "records.parquet",
        "records.csv",
        "records.json",
        "report.html",
    ):
        assert (folder / name).stat().st_size > 0
    cells = {path: path.stat().st_mtime_ns for path in folder.glob("cells/*/*.json")}
    assert len(cells) == 9
    assert {path: path.stat().st_mtime_ns for path in kept} == kept, "what was measured stays as it was"
    page = (folder / "report.html").stat().st_mtime_ns
    again = snakemake(*dag, CI="1")
    assert again.returncode == 0 and "Nothing to be done" in again.stdout + again.stderr, (
        again.stdout + again.stderr
    )
    assert (folder / "report.html").stat().st_mtime_ns == page
    assert {path: path.stat().st_mtime_ns for path in cells} == cells
    report = snakemake(*dag, "--report", str(tmp_path / "report.zip"), CI="1")
    assert report.returncode == 0, report.stdout + report.stderr
    with zipfile.ZipFile(tmp_path / "report.zip") as packed:
        named = {Path(name).name for name in packed.namelist()}
    assert {"report.html", *(path.name for path in (folder / "figures").glob("throughput_*.*"))} <= named
    assert any(name.startswith("throughput_") for name in named)


SMALL = """
measure: {warmup: 0, warm_seconds: 0, repeats: 3, precision: 0, max_seconds: 1, timeout_s: 60}
grids: [{kernel: [naive, sdpa], mask: causal, seqlen: 64, heads: "2:1", head_dim: 16, dtype: fp32, direction: fwd}]
"""  # noqa: E501


class Small:
    """The study `SMALL`: the workflow, and runs by hand."""

    def __init__(self, dag: list[str], longca, folder: Path) -> None:
        self._dag = dag
        self._longca = longca
        self._folder = folder
        self.results = folder / "results/tiny"

    def make(self) -> str:
        """What the workflow prints. Tables and page are those of the records."""
        done = snakemake(*self._dag, CI="1")
        assert done.returncode == 0, done.stdout + done.stderr
        times = {record.cell_id: record.samples.time_ms for record in CellStore(self.results).read_all()[0]}
        table = self.results / "records.parquet"
        assert {record.cell_id: record.samples.time_ms for record in load(table).records} == times
        assert len(times) == 2
        assert (self.results / "report.html").stat().st_mtime_ns >= table.stat().st_mtime_ns
        return done.stdout + done.stderr

    def run(self, *options: str) -> None:
        done = self._longca(
            "run",
            self._folder / "tiny.yaml",
            "--results",
            self._folder / "results",
            "--device",
            "cpu",
            *options,
        )
        assert done.returncode == 0, done.stderr

    def playoffs(self) -> set[str | None]:
        """Names of the play-offs in the table."""
        played = load(self.results / "records.parquet").playoffs
        assert len(played) == 2
        return {record.playoff for record in played}


@pytest.fixture
def small(dag: list[str], longca, tmp_path: Path) -> Small:
    """A run of `SMALL` that has its page."""
    (tmp_path / "tiny.yaml").write_text(SMALL)
    made = Small(dag, longca, tmp_path)
    made.make()
    return made


@pytest.mark.long
def test_the_table_and_the_page_follow_the_records_whoever_measured_them(small: Small):
    small.run("--force")
    assert "\nkernels " not in small.make(), "nothing was left to measure"
    before = small.playoffs()
    next(small.results.glob("cells/*/*.json")).unlink()
    (played,) = small.results.glob("playoffs/*.jsonl")
    played.unlink()
    output = small.make()
    assert "\nkernels " in output
    assert small.playoffs().isdisjoint(before)


@pytest.mark.long
def test_the_page_follows_the_records_whatever_the_times_of_files_say(small: Small):
    page = small.results / "report.html"
    before = page.read_bytes()
    future = time.time() + 3600
    for name in ("records.parquet", "records.csv", "records.json", "report.html"):
        os.utime(small.results / name, (future, future))
    small.run("--force")
    output = small.make()
    assert "\nkernels " not in output and "\ncollect " in output and page.read_bytes() != before
    page.write_bytes(before)
    output = small.make()
    assert "\nreport " in output and "\ncollect " not in output and page.read_bytes() != before
    assert "Nothing to be done" in small.make()


@pytest.mark.slow
def test_the_table_follows_playoffs(small: Small):
    before = small.playoffs()
    next(small.results.glob("playoffs/*.jsonl")).unlink()
    assert "\nkernels " in small.make(), "a play-off is due"
    assert small.playoffs().isdisjoint(before)
    small.run("--force", "--playoff-only")
    output = small.make()
    assert "\nkernels " not in output and "\ncollect " in output, "the play-offs were made by hand"


def test_a_cluster_plays_off_in_a_job_of_its_own(tmp_path: Path):
    (tmp_path / "tiny.yaml").write_text(SMALL)
    arguments = [
        "--dry-run",
        "--cores",
        "1",
        "--config",
        f"study={tmp_path / 'tiny.yaml'}",
        f"results={tmp_path / 'results'}",
        "device=cpu",
    ]
    done = snakemake(*arguments, CI="1")
    assert done.returncode == 0 and "\nplayoff  " in done.stdout, done.stdout + done.stderr
    (tmp_path / "tiny.yaml").write_text(SMALL + "playoff: false\n")
    assert "\nplayoff  " not in snakemake(*arguments, CI="1").stdout
