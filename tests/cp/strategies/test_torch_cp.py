"""torch's own ring attention behind the strategy's contract, over gloo, with either rotation of keys."""

import pytest

from longca.lab.studies.cell import Cell
from tests.helpers.cp.case import STATIC_MASKS, Case
from tests.helpers.cp.torch_rows import CELLS, cell, check, check_uncounted, refusal, sampled


@pytest.mark.long
@pytest.mark.parametrize(("step", "case"), sampled(("torch_cp", "torch_cp_alltoall")), ids=str)
def test_results_are_those_of_one_device(step: int, case: Case):
    check(step, case)


@pytest.mark.parametrize("cell", CELLS[:2], ids=lambda cell: f"{cell.strategy}-{cell.direction}")
def test_bytes_that_nobody_counted_are_not_0(cell: Cell):
    check_uncounted(cell)


@pytest.mark.parametrize("mask", STATIC_MASKS)
def test_the_ring_is_for_full_and_causal_alone(mask: str):
    reason = refusal(cell("torch_cp", "sdpa", mask), **STATIC_MASKS[mask])
    assert (reason is None) == (mask in ("full", "causal")), reason


@pytest.mark.parametrize(
    ("wanted", "device_type", "words"),
    [
        (cell("torch_cp", "naive"), "cpu", "cudnn or torch_flash or sdpa"),
        (cell("torch_cp", "sdpa"), "cuda", "cudnn or torch_flash"),
        (cell("torch_cp", "cudnn", dtype="fp32"), "cuda", "bf16 and fp16 only"),
        (cell("torch_cp", "sdpa", seqlen=387), "cpu", "387 tokens are no 6 equal parts"),
    ],
)
def test_refusals(wanted: Cell, device_type: str, words: str):
    assert words in (refusal(wanted, device_type) or "")
