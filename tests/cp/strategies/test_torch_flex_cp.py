"""FlexAttention under torch's own context parallelism, over gloo, for all masks."""

import pytest

from longca.cp.comm.backend import Comm
from longca.lab.bench.measure.cp import measure_cp
from longca.lab.bench.measure.result import Result
from longca.lab.studies.cell import Cell
from tests.helpers.cp.case import Case
from tests.helpers.cp.ranks import on_ranks
from tests.helpers.cp.torch_rows import CELLS, MEASURE, WORLD, cell, check, check_uncounted, refusal, sampled


@pytest.mark.long
@pytest.mark.parametrize(("step", "case"), sampled(("torch_flex_cp",)), ids=str)
def test_results_are_those_of_one_device(step: int, case: Case):
    check(step, case)


@pytest.mark.parametrize("cell", CELLS[2:], ids=lambda cell: f"{cell.strategy}-{cell.direction}")
def test_bytes_that_nobody_counted_are_not_0(cell: Cell):
    check_uncounted(cell)


@pytest.mark.parametrize(
    ("wanted", "device_type", "words"),
    [
        (cell("torch_flex_cp", "naive"), "cpu", "flex"),
        (cell("torch_flex_cp", "flex", seqlen=400), "cpu", "400 tokens"),
        (cell("torch_flex_cp", "flex", direction="bwd"), "cpu", "no FlexAttention backward on CPU"),
        (cell("torch_flex_cp", "flex", "block_sparse_uniform"), "cuda", "one mask for all heads"),
    ],
)
def test_refusals(wanted: Cell, device_type: str, words: str):
    assert words in (refusal(wanted, device_type) or "")


@pytest.mark.slow
def test_compiled_block_masks_too():
    result = on_ranks(_measure, WORLD, cell("torch_flex_cp", "flex", "shared_question", corpus="pile"))[0]
    assert result.outcome.status == "ok", result.outcome


def _measure(comm: Comm, wanted: Cell) -> Result:
    return measure_cp(wanted, MEASURE, comm.device, comm)
