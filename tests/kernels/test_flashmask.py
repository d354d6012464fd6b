"""FlashMask's operator in Triton's interpreter, where Triton is there; what it refuses."""

import importlib.util

import pytest

from longca.core.plugin import Registry
from tests.helpers.kernels.cases import BEYOND_FLASHMASK, Case, pattern_mask
from tests.helpers.support import in_interpreter

STATIC = [pattern_mask(name, 2) for name in Registry("mask").names() if not name.startswith(BEYOND_FLASHMASK)]


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton here")
@pytest.mark.parametrize("part", ["flashmask"])
@pytest.mark.timeout(1200)  # it may wait for the process that works for all parts
def test_operator_agrees_with_the_definition(part: str, interpreted: str) -> None:
    assert f"right: {part}\n" in interpreted, interpreted


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton here")
def test_operator_agrees_with_the_definition_of_every_mask() -> None:
    done = in_interpreter("whole", "flashmask")
    assert done.returncode == 0, done.stdout + done.stderr


def test_takes_all_static_masks_and_no_chosen_blocks() -> None:
    flashmask = Registry("kernel").load("flashmask")
    for direction in ("fwd", "bwd"):
        for mask in STATIC:
            case = Case(mask, 4, 2, head_dim=128)
            assert (
                flashmask.supports(case.cell("flashmask", direction, "bf16").call_spec, mask.traits, "cuda")
                is None
            )
    blocks = Case(pattern_mask("block_sparse_uniform", 2), 4, 2, head_dim=128)
    assert "runs of queries" in flashmask.supports(
        blocks.cell("flashmask", "fwd", "bf16").call_spec, blocks.mask.traits, "cuda"
    )
