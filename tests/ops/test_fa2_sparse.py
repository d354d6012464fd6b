import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest

NEWEST_NUMPY = (2, 3)  # Triton 3.6 turns arrays of one number into ints, which later ones refuse


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed here")
@pytest.mark.skipif(
    tuple(map(int, np.__version__.split(".")[:2])) > NEWEST_NUMPY,
    reason="too new a numpy for the interpreter",
)
def test_agrees_with_the_definition_under_the_interpreter() -> None:
    code = [sys.executable, "-m", "tests.ops.interpreted_fa2_sparse"]
    done = subprocess.run(code, capture_output=True, text=True, env={**os.environ, "TRITON_INTERPRET": "1"})
    assert done.stdout == "right", done.stderr
