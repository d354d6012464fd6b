"""Attention in parts in Triton's interpreter, where Triton is there: in a process of its own, since the switch is global."""

import importlib.util
import os
import subprocess
import sys

import pytest


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton here")
@pytest.mark.parametrize("cases", ["few", pytest.param("whole", marks=pytest.mark.slow)])
def test_parts_are_the_whole_in_the_interpreter(cases: str) -> None:
    done = subprocess.run([sys.executable, "-m", "tests.ops.parts_interpreted", cases], capture_output=True, text=True,
                          env={**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""})
    assert done.stdout == "right", done.stderr
