"""A full disk under the output of a command: measuring goes on and says so, any other command fails in one
line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from longca.lab.store.cells import CellStore
from tests.helpers.support import ROOT, TINY

FULL = Path("/dev/full")
pytestmark = [pytest.mark.long, pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full")]


def longca(*arguments: object, **streams: str) -> subprocess.CompletedProcess[str]:
    """The command with these of its streams on a full disk."""
    environ = os.environ | {"PYTHONPATH": str(ROOT), "LONGCA_DEVICE": "cpu", "CI": "1"}
    with FULL.open("w") as full:
        targets = {name: full if name in streams else subprocess.PIPE for name in ("stdout", "stderr")}
        command = [sys.executable, "-m", "longca", *map(str, arguments)]
        return subprocess.run(command, env=environ, text=True, check=False, **targets)


def test_a_run_goes_on_where_its_output_is_full(tmp_path: Path):
    study = tmp_path / "tiny.yaml"
    study.write_text(TINY.partition("  - {kind: cp")[0].replace("[fwd, bwd]", "fwd"))
    arguments = ("run", study, "--results", tmp_path, "--no-playoff", "--no-repeats")
    done = longca(*arguments, stdout="full")
    assert done.returncode == 0, done.stderr
    assert "Some of standard output is missing: No space left on device" in done.stderr.splitlines()[-1]
    assert len(CellStore(tmp_path / "tiny").read_all()[0]) == 4
    done = longca(*arguments, "--force", "-k", "naive", stderr="full")
    assert done.returncode == 0 and "Some of standard error is missing" in done.stdout.splitlines()[-1]

    done = longca("status", study, "--results", tmp_path, "--json", stdout="full")
    assert done.returncode == 2
    assert done.stderr == "longca: Cannot use 'standard output': No space left on device\n"
