"""Attention over the steps of context-parallel plans, in Triton's interpreter, where Triton is there. Tests
of the smaller kernels' modules have a part each."""

import importlib.util

import pytest

from tests.helpers.support import in_interpreter

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton here")
PARTS = ("merging", "band_in_parts", "sums_to_gradients", "statistics_of_rows")


@pytest.mark.parametrize("part", ["band_in_parts"])
@pytest.mark.timeout(1200)  # the first part may wait for the process that works for all
def test_parts_are_the_whole_in_the_interpreter(part: str, interpreted: str) -> None:
    assert f"right: {part}\n" in interpreted, interpreted


@pytest.mark.slow
def test_all_parts_are_the_whole_in_the_interpreter() -> None:
    done = in_interpreter("whole", *PARTS)
    assert done.returncode == 0, done.stdout + done.stderr
