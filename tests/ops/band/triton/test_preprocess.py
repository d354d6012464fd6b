"""The two numbers of each row, wherever a block begins. In Triton's interpreter, where Triton is there."""

import importlib.util

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton here")


@pytest.mark.parametrize("part", ["statistics_of_rows"])
@pytest.mark.timeout(1200)  # the first part may wait for the process that works for all
def test_parts_are_the_whole_in_the_interpreter(part: str, interpreted: str) -> None:
    assert f"right: {part}\n" in interpreted, interpreted
