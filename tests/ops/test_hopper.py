"""The Hopper kernels of band attention under an emulator: right, and free of deadlocks and races, in whatever
order things happen."""

import subprocess
import sys

import pytest

from tools.pages import ROOT

pytestmark = pytest.mark.long


def run(*arguments: str) -> str:
    command = [sys.executable, "-m", "tests.ops.gluon", "tests.ops.hopper_emulated", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout


def test_hopper_kernels_are_right_in_an_order_of_events():
    said = run("few", "0", "1")
    assert (
        "causal_document (4, 2) from the first" in said and "causal_sliding_window (4, 2) two kernels" in said
    )
    assert "narrow blocks, causal_sliding_window, split (8, 1) forward" in said and "merged" in said


def test_hopper_kernels_of_head_dim_64_are_right():
    said = run("few", "0", "1", "64")
    assert "three consumer groups" in said and "random bands 3 (4, 2) any order" in said


@pytest.mark.slow
@pytest.mark.parametrize("head_dim", [128, 64])
@pytest.mark.parametrize("seed", range(1, 4))
def test_hopper_kernels_are_right_in_many_orders_of_events(seed: int, head_dim: int):
    assert "merged" in run("whole", str(seed), "1", str(head_dim))
