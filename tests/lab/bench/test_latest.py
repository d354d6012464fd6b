"""Masks and references are made once for the cells that share them, and few are kept."""

import pytest
import torch

from longca.kernels.contract import Problem
from longca.lab.bench.check import reference as reference_module
from longca.lab.bench.check.plan import CheckPlan
from longca.lab.bench.measure import latest
from longca.lab.bench.measure.kernel import measure_kernel
from longca.lab.bench.measure.latest import KEPT, LatestMasks, LatestReferences
from longca.lab.studies.cell import Cell
from longca.lab.studies.grid import Measure
from longca.lab.studies.masks import cell_mask
from longca.lab.studies.record import Accuracy
from tests.helpers.bench.cells import small_cell

pytestmark = pytest.mark.long

CPU = torch.device("cpu")
ONCE = Measure.fixed(warmup=0, repeats=1)


def test_cells_of_one_mask_share_it_and_its_cost() -> None:
    masks = LatestMasks()
    forward = small_cell(direction="fwd")
    backward = small_cell(direction="bwd")
    mask, build_ms = masks.get(forward)
    assert masks.get(backward) == (mask, build_ms) and build_ms > 0
    assert mask.digest == cell_mask(backward).digest


def test_other_masks_push_old_ones_out() -> None:
    masks = LatestMasks()
    first = masks.get(small_cell(seqlen=64))[0]
    for number in range(KEPT):
        other = masks.get(small_cell(seqlen=65 + number))[0]
        assert other.seqlen_q == 65 + number
    assert masks.get(small_cell(seqlen=64))[0] is not first


FEW_ROWS = 32  # of timed calls so many are looked at, under the inputs of those calls


def _accuracy(cell: Cell, references: LatestReferences) -> Accuracy:
    result = measure_kernel(cell, ONCE, CPU, references=references)
    assert result.outcome.status == "ok" and result.accuracy is not None
    return result.accuracy


@pytest.mark.sample(3)  # bands forward first, blocks of each KV head backward first
@pytest.mark.parametrize(
    ("mask", "directions"),
    [
        (mask, directions)
        for mask in ("shared_question", "block_sparse_variable", "block_sparse_uniform")
        for directions in (("fwd", "bwd"), ("bwd", "fwd"))
    ],
)
def test_a_shared_reference_gives_the_same_errors(
    mask: str, directions: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [
        small_cell(kernel, mask, direction, dtype="bf16")
        for direction in directions
        for kernel in ("naive", "sdpa")
    ]
    alone = [_accuracy(cell, LatestReferences()) for cell in cells]
    computed = []

    def counted(*arguments: object) -> tuple:
        if len(arguments[0].visible_nC) > FEW_ROWS:
            computed.append(arguments)
        return attend(*arguments)

    attend = reference_module.attend
    monkeypatch.setattr(reference_module, "attend", counted)
    one_cell = _calls(cells[directions.index("bwd") * 2], computed)
    shared = LatestReferences()
    assert [_accuracy(cell, shared) for cell in cells] == alone, "to the last bit"
    assert len(computed) == one_cell * (1 if directions[0] == "bwd" else 2), (
        "a backward has what a forward needs; once each"
    )


def _calls(cell: Cell, computed: list) -> int:
    """The number of calls of the definition that a cell takes if it shares with none."""
    _accuracy(cell, LatestReferences())
    number = len(computed)
    computed.clear()
    return number


def test_without_memory_for_it_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = small_cell()
    references = LatestReferences()
    problem = Problem(cell_mask(cell), 4, 2, 16, torch.float32, CPU, needs_backward=False)
    plan = CheckPlan(cell, problem, seed=0)
    first = references.get(plan)
    assert first is not None and references.get(plan) is first
    monkeypatch.setattr(latest, "KEPT_REFERENCE_BYTES", 1)
    assert references.get(plan) is None


def test_another_problem_has_another_reference_and_few_are_kept() -> None:
    references = LatestReferences()

    def get(**changes: object) -> object:
        cell = small_cell(**changes)
        problem = Problem(
            cell_mask(cell),
            cell.num_q_heads,
            cell.num_kv_heads,
            cell.head_dim,
            torch.float32,
            CPU,
            needs_backward=cell.direction == "bwd",
        )
        return references.get(CheckPlan(cell, problem, seed=0))

    first = get()
    others = [
        get(**changes)
        for changes in ({"num_q_heads": 8}, {"num_kv_heads": 1}, {"head_dim": 32}, {"seqlen": 64})
    ]
    assert len({id(entry) for entry in (first, *others)}) == 5
    assert len(references._references) == KEPT and get() is not first
