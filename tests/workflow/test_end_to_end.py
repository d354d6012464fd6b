"""The whole DAG over a tiny study, really run: to the page, again for nothing, and on after a kill."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.forked import snakemake
from tests.support import ROOT, TINY


@pytest.fixture
def dag(tmp_path: Path) -> list[str]:
    """Arguments of Snakemake."""
    study = tmp_path / "tiny.yaml"
    study.write_text(TINY)
    return ["--profile", "workflow/profiles/local", "--config", f"study={study}", f"results={tmp_path / 'results'}", "device=cpu"]


def started(arguments: list[str]) -> subprocess.Popen[str]:
    """In a process group of its own."""
    return subprocess.Popen([sys.executable, "-m", "snakemake", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            cwd=ROOT, env={**os.environ, "CI": "1"}, start_new_session=True)


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
    for name in ("corpora.json", "masks.json", "records.parquet", "records.csv", "records.json", "report.html"):
        assert (folder / name).stat().st_size > 0
    cells = {path: path.stat().st_mtime_ns for path in folder.glob("cells/*/*.json")}
    assert len(cells) == 9
    assert {path: path.stat().st_mtime_ns for path in kept} == kept, "what was measured stays as it was"
    page = (folder / "report.html").stat().st_mtime_ns
    again = snakemake(*dag, CI="1")
    assert again.returncode == 0 and "Nothing to be done" in again.stdout + again.stderr, again.stdout + again.stderr
    assert (folder / "report.html").stat().st_mtime_ns == page
    assert {path: path.stat().st_mtime_ns for path in cells} == cells
