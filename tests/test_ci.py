"""`.ci/run` with commands that only say their names: lanes, failures, and the end by a signal. Actions of the
workflows are pinned."""

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from tests.helpers.support import ROOT

MAKE = """#!/bin/sh
echo "make $1" >> "$SAID"
case " $SLOW " in *" $1 "*) sleep 60 ;; esac
[ "$1" != "$BAD" ]
"""
TARGETS = {
    "tests": ["test", "test-long"],
    "cluster": ["test-images", "test-slurm"],
    "pages": ["lint", "test-wheel", "test-commands", "paper", "dry-run"],
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with `.ci/run`, and with a `make` and installers that do nothing."""
    for folder in (".ci", "tools", "bin"):
        (tmp_path / folder).mkdir()
    shutil.copy(ROOT / ".ci/run", tmp_path / ".ci/run")
    (tmp_path / "bin/make").write_text(MAKE)
    for name in ("browser", "minisign", "apptainer"):
        (tmp_path / f"tools/install_{name}.sh").write_text("#!/bin/sh\n")
    for file in (*tmp_path.glob("tools/*"), tmp_path / "bin/make"):
        file.chmod(0o755)
    return tmp_path


def started(project: Path, bad: str = "", slow: str = "") -> subprocess.Popen[str]:
    environ = {
        **os.environ,
        "PATH": f"{project}/bin:{os.environ['PATH']}",
        "SAID": str(project / "said"),
        "BAD": bad,
        "SLOW": slow,
        "TMPDIR": str(project),
    }
    return subprocess.Popen(
        [project / ".ci/run"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environ
    )


def said(project: Path) -> list[str]:
    return [line.removeprefix("make ") for line in (project / "said").read_text().splitlines()]


@pytest.mark.parametrize("bad", ["", "test-images", "test"])
def test_all_targets_are_made_and_one_that_fails_fails_its_lane(project: Path, bad: str):
    run = started(project, bad)
    output, _ = run.communicate(timeout=60)
    assert run.returncode == (1 if bad else 0)
    ran = said(project)
    assert ran[0] == "setup"
    assert sorted(ran[1:]) == sorted(target for targets in TARGETS.values() for target in targets)
    for targets in TARGETS.values():
        assert [target for target in ran if target in targets] == targets
    lane = next((lane for lane, targets in TARGETS.items() if bad in targets), "")
    assert (f"failed: {bad}\n" in output and f"failed: {lane}\n" in output) == bool(bad)
    assert "+ make paper" in output and not list(project.glob("tmp.*")), (
        "what the other lanes wrote is shown, and no log is left"
    )


def test_a_signal_ends_all_lanes_and_shows_what_they_wrote(project: Path):
    run = started(project, slow="test test-slurm")
    deadline = time.monotonic() + 60
    while not (project / "said").exists() or "test-slurm" not in said(project):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    run.send_signal(signal.SIGTERM)
    output, _ = run.communicate(timeout=30)  # `test` has the output open until it ends
    assert run.returncode == 130 and "+ make test-slurm" in output


def test_actions_are_pinned_by_commit():
    files = sorted((ROOT / ".github/workflows").glob("*"))
    assert [file.stem for file in files] == ["ci", "release"]
    for text in (file.read_text(encoding="utf-8") for file in files):
        used = re.findall(r"uses: (.*)", text)
        assert used and all(
            re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line) for line in used
        )
    text = files[0].read_text(encoding="utf-8")
    flow = yaml.safe_load(text)
    assert (
        flow["permissions"] == {"contents": "read"}
        and "secrets." not in text
        and "pull_request_target" not in text
    )
    targets = set(re.findall(r"^([a-z-]+)[a-z -]*:", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = [step["run"] for job in flow["jobs"].values() for step in job["steps"] if "run" in step]
    assert {command.split()[1] for command in commands if command.startswith("make ")} <= targets
