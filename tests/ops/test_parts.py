"""Attention in parts in Triton's interpreter, where Triton is there."""

import importlib.util

import pytest

from tests.helpers.support import in_interpreter

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton here")
PARTS = ("merging", "band_in_parts", "sums_to_gradients", "statistics_of_rows")


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.timeout(1200)  # the first one may wait for the process that works for all
def test_parts_are_the_whole_in_the_interpreter(part: str, interpreted: str) -> None:
    assert f"right: {part}\n" in interpreted, interpreted


@pytest.mark.slow
def test_all_parts_are_the_whole_in_the_interpreter() -> None:
    done = in_interpreter("whole", *PARTS)
    assert done.returncode == 0, done.stdout + done.stderr
