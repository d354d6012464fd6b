"""Band attention in Triton's interpreter and compiled, where Triton is there."""

import importlib.util
import subprocess
import sys

import pytest

from tests.helpers.support import ROOT, in_interpreter

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton here")


PARTS = ("patterns", "hand_made", "heads", "random_bands", "split_lines", "carried", "public", "adapter")


@pytest.mark.long
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.timeout(1200)  # the first one waits for the process that works for all parts
def test_in_the_interpreter(part: str, interpreted: str) -> None:
    assert f"right: {part}\n" in interpreted, interpreted


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_whole_in_the_interpreter(part: str) -> None:
    done = in_interpreter("whole", part)
    assert done.returncode == 0, done.stdout + done.stderr


def compiled(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.ops.band_compiled", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )


@pytest.mark.long
def test_compiles_for_hopper() -> None:
    """One build of each kernel that is written for it, in one process for all. Those of Triton's own language
    run in the interpreter."""
    done = compiled("few", "forward", "backward")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["forward", "backward", "portable"])
def test_every_build_compiles_for_hopper(direction: str) -> None:
    done = compiled("whole", direction)
    assert done.returncode == 0, done.stdout + done.stderr
