"""The cells that a run measures a second time."""

import pytest
from pydantic import ValidationError

from longca.lab.studies.cell import Cell
from longca.lab.studies.playoff.repeats import RepeatRules, beginning, drawn, may_repeat
from longca.lab.studies.study import Study

GRID = {
    "kernel": ["naive", "sdpa", "flex"],
    "mask": ["full", "causal"],
    "seqlen": [128, 256, 512],
    "heads": "2:1",
    "head_dim": 32,
}
STUDY = Study(name="drawn", grids=(GRID,))
TIMES: dict[Cell, float] = {cell: 0.2 * cell.seqlen for cell in STUDY.cells()}


def test_beginning_has_each_kernel_direction_and_length_of_call() -> None:
    groups = {(cell.kernel, cell.direction, TIMES[cell] < 100) for cell in TIMES}
    first = drawn(TIMES, seed=3)[: len(groups)]
    assert {(cell.kernel, cell.direction, TIMES[cell] < 100) for cell in first} == groups


def test_more_cells_leave_the_order_of_those_before_in_a_group() -> None:
    fewer = {cell: time_ms for cell, time_ms in TIMES.items() if cell.mask == "full"}
    key = lambda cell: (cell.kernel, cell.direction, TIMES[cell] < 100)  # noqa: E731
    of_all = drawn(TIMES, seed=0)
    of_fewer = drawn(fewer, seed=0)
    for group in {key(cell) for cell in fewer}:
        assert [c for c in of_all if key(c) == group and c in fewer] == [
            c for c in of_fewer if key(c) == group
        ]
    assert drawn(TIMES, seed=1) != of_all


@pytest.mark.parametrize(("num_cells", "count"), [(0, 0), (3, 3), (36, 4), (1000, 20), (10_000, 40)])
def test_number_of_repeats(num_cells: int, count: int) -> None:
    assert RepeatRules().count(num_cells) == count


def test_share_of_one_repeats_all() -> None:
    assert set(beginning(TIMES, 0, RepeatRules(share=1, most=1000))) == set(TIMES)


def test_study_switches_repeats() -> None:
    assert Study(name="a", repeats=False, grids=(GRID,)).repeats is None
    assert Study(name="a", repeats=True, grids=(GRID,)).repeats == RepeatRules()
    with pytest.raises(ValidationError, match="less than `least`"):
        Study(name="a", repeats={"most": 2}, grids=(GRID,))


def test_defects_and_sustained_calls_are_not_repeated() -> None:
    cell = STUDY.cells()[0]
    assert may_repeat(cell)
    assert not may_repeat(cell.model_copy(update={"sustained": True}))
    assert not may_repeat(cell.model_copy(update={"kernel": "as_released_sdpa"}))
