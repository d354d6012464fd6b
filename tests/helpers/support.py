"""A tiny study that has every stage, for tests of the command line and of the workflow."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import settings

from tools.checks import CANNOT, REQUIRED

ROOT = Path(__file__).resolve().parents[2]

TINY = """
title: tiny
measure: {warmup: 0, warm_seconds: 0, repeats: 3, precision: 0, max_seconds: 1, timeout_s: 60}
grids:
  - {kernel: [naive, sdpa], mask: [full, causal_document], seqlen: 64, heads: "2:1", head_dim: 16, dtype: fp32, direction: [fwd, bwd]}
  - {kind: cp, strategy: ulysses, kernel: naive, world: 2, mask: causal, seqlen: 64, heads: "2:1", head_dim: 16, dtype: fp32,
     direction: fwd}
"""  # noqa: E501


def in_interpreter(cases: str, *parts: str) -> subprocess.CompletedProcess[str]:
    """Those parts of tests.helpers.ops.interpreted, few|whole."""
    return subprocess.run(
        [sys.executable, "-m", "tests.helpers.ops.interpreted", cases, *parts],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""},
        check=False,
    )


def examples(whole: int) -> settings:
    """That many random cases in `make test-all`, and a part of them in the default run, at least 4. The
    profile says how large a part."""
    return settings(max_examples=max(4, whole * settings.default.max_examples // 100), deadline=None)


def cannot(needed: str, reason: str) -> NoReturn:
    """Skip a test that this machine is not fit for. It fails instead where the variable TESTS_REQUIRE names
    what it needs.

    Args:
        needed: "images" or "slurm".
        reason: the reason, for a person.
    """
    text = f"{CANNOT} {reason}"
    if needed in os.environ.get(REQUIRED, "").split():
        pytest.fail(f"{text} ({REQUIRED} names {needed}; without it this test is skipped)", pytrace=False)
    pytest.skip(text)
