"""The whole DAG over a tiny study, really run: to the page, again for nothing, and on after a kill."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import ROOT, TINY


@pytest.fixture
def run_dag(tmp_path: Path):
    study = tmp_path / "tiny.yaml"
    study.write_text(TINY)
    command = [sys.executable, "-m", "snakemake", "--profile", "workflow/profiles/local", "--config", f"study={study}",
               f"results={tmp_path / 'results'}", "device=cpu"]

    def start(*arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
                                env={**os.environ, "CI": "1"}, start_new_session=True)

    return start


def test_whole_dag_goes_on_after_a_kill_and_then_has_nothing_to_do(run_dag, tmp_path):
    folder = tmp_path / "results" / "tiny"
    first = run_dag()
    deadline = time.monotonic() + 200
    while len(list(folder.glob("cells/*/*.json"))) < 2:
        assert time.monotonic() < deadline and first.poll() is None, first.communicate()[0]
        time.sleep(0.05)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    kept = {path: path.stat().st_mtime_ns for path in folder.glob("cells/*/*.json")}
    second = run_dag()
    output, _ = second.communicate(timeout=300)
    assert second.returncode == 0, output
    for name in ("corpora.json", "masks.json", "records.parquet", "records.csv", "records.json", "report.html"):
        assert (folder / name).stat().st_size > 0
    cells = {path: path.stat().st_mtime_ns for path in folder.glob("cells/*/*.json")}
    assert len(cells) == 9
    assert {path: path.stat().st_mtime_ns for path in kept} == kept, "what was measured stays as it was"
    page = (folder / "report.html").stat().st_mtime_ns
    again = run_dag()
    output, _ = again.communicate(timeout=120)
    assert again.returncode == 0, output
    assert "Nothing to be done" in output
    assert (folder / "report.html").stat().st_mtime_ns == page
    assert {path: path.stat().st_mtime_ns for path in cells} == cells
