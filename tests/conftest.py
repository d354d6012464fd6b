"""What every test may ask for: a command line in a process of its own, and a tiny study to give it."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from longca.bench.measure.warm_math import warm_math
from tests.support import ROOT, TINY


@pytest.fixture(scope="session", autouse=True)
def _math_is_warm() -> None:
    """Tests compute in this process, where no measuring session has seen to it."""
    warm_math()


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return path


@pytest.fixture
def longca(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """longca(*arguments) → the finished process; results go below tmp_path."""

    def run(*arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, "LONGCA_RESULTS": str(tmp_path / "results"), "LONGCA_DEVICE": "cpu", "CI": "1", "COLUMNS": "200", **env}
        return subprocess.run([sys.executable, "-m", "longca", *map(str, arguments)], capture_output=True, text=True, cwd=ROOT,
                              env=environ, check=False)

    return run
