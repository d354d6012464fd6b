"""Output and dQ accumulators over CP steps, including steps that cover only some rows: float32 sums, rounded
once."""

from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longca.cp.runtime.accumulate import (
    Contributions,
    DqAccumulator,
    OutputAccumulator,
    contributions_of,
    merge,
    no_keys,
)
from longca.cp.runtime.plan_attention import LocalStep
from longca.cp.schedule.plan import Plan
from longca.cp.schedule.planner import step_masks
from longca.kernels.contract import UNIT_ROWS, Contribution
from longca.masks import build_mask
from tests.helpers.cp.plans import plans
from tests.helpers.masks.strategies import quick

ROWS = 12
MANY = 12 * UNIT_ROWS - 5
STEPS = [
    [],
    [(0, 12)],
    [(3, 9)],
    [(0, 12), (0, 12)],
    [(0, 12), (5, 12)],
    [(2, 4), (0, 12)],
    [(0, 5), (3, 9), (8, 12)],
    [(0, 12), (0, 12), (1, 2)],
]


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("steps", STEPS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_queries(steps: list[tuple[int, int]], dtype: torch.dtype):
    running = DqAccumulator(torch.empty(ROWS, 2, 4, dtype=dtype))
    expected = torch.zeros(ROWS, 2, 4)
    for number, (first, behind) in enumerate(steps):
        part = drawn(behind - first, 2, 4 + number)[..., :4].to(dtype)
        running.waiting = slice(first, behind), part, number == len(steps) - 1
        running.add()
        expected[first:behind] += part
    assert running.result().dtype == dtype
    torch.testing.assert_close(running.result(), expected.to(dtype), rtol=0, atol=0)


class Given:
    """A kernel that merges; its results are given in place of keys and values."""

    def forward_onto(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        total: torch.Tensor,
        lse: torch.Tensor,
        out: torch.Tensor,
        contributions: tuple[Contribution, ...],
    ) -> None:
        for contribution in contributions:
            for rows in of(contribution, len(q)):
                merged, of_merged = (
                    (total[rows].clone(), lse[rows].clone())
                    if not contribution.is_first
                    else no_keys(total[rows])
                )
                merge(merged, of_merged, k[rows], v[rows])
                (out if contribution.is_last else total)[rows] = merged
                lse[rows] = of_merged

    def backward_onto(
        self,
        given: tuple[torch.Tensor, ...],
        total: torch.Tensor,
        dq: torch.Tensor,
        contributions: tuple[Contribution, ...],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        for contribution in contributions:
            for rows in of(contribution, len(total)):
                (dq if contribution.is_last else total)[rows] = given[0][rows] + (
                    0 if contribution.is_first else total[rows]
                )
        return given[1], given[2]


def of(contribution: Contribution, num_rows: int) -> list[slice]:
    return [slice(*rows) for rows in contribution.rows or ((0, num_rows),)]


def local_steps(steps: list[tuple[int, int]]) -> tuple[list[LocalStep], Contributions]:
    """Whose rows are given in units."""
    masks = {
        number: (
            UNIT_ROWS * first,
            rows := min(UNIT_ROWS * behind, MANY),
            build_mask("full", seqlen=rows - UNIT_ROWS * first),
        )
        for number, (first, behind) in enumerate(steps)
    }
    contributions = contributions_of(masks, MANY)
    return [
        LocalStep(first, behind, Given(), contributions.of_step[number])  # type: ignore[arg-type]
        for number, (first, behind, _) in masks.items()
    ], contributions


@pytest.mark.parametrize("steps", STEPS[1:], ids=str)
def test_outputs_of_kernels_that_merge(steps: list[tuple[int, int]]):
    """Rows are brought to the dtype once, by whatever step is their last; those of no step are 0, with an LSE
    of −inf."""
    local, contributions = local_steps(steps)
    running = OutputAccumulator(torch.empty(MANY, 2, 4, dtype=torch.bfloat16), len(steps), contributions)
    out = torch.zeros(MANY, 2, 4)
    lse = torch.full((MANY, 2), -torch.inf)
    for step in local:
        part = drawn(step.end - step.start, 2, 4)
        of_part = drawn(step.end - step.start, 2)
        running.merge_onto(step.rows, step.call, step.contributions, part, of_part)
        merge(out[step.rows], lse[step.rows], part, of_part)
    actual, of_found = running.result()
    assert actual.dtype == torch.bfloat16
    torch.testing.assert_close(actual, out.bfloat16(), rtol=0, atol=0)
    torch.testing.assert_close(of_found, lse, rtol=0, atol=0)


@pytest.mark.parametrize("steps", STEPS[1:], ids=str)
def test_gradients_of_kernels_that_merge(steps: list[tuple[int, int]]):
    local, contributions = local_steps(steps)
    running = DqAccumulator(torch.empty(MANY, 2, 4, dtype=torch.bfloat16), contributions)
    expected = torch.zeros(MANY, 2, 4)
    for number, step in enumerate(local):
        part, dk, dv = (drawn(step.end - step.start, 2, 4 + number)[..., :4] for _ in range(3))
        assert running.add_onto(step.rows, step.call, step.contributions, (part, dk, dv)) == (dk, dv)
        expected[step.rows] += part
    assert running.result().dtype == torch.bfloat16
    torch.testing.assert_close(running.result(), expected.bfloat16(), rtol=0, atol=0)


@quick
@given(plans(), st.sampled_from([1, 2, 5, UNIT_ROWS]))
def test_every_row_of_a_step_is_visited_once_in_it_and_begun_and_ended_once_in_all(plan: Plan, unit: int):
    with (
        mock.patch("longca.cp.runtime.accumulate.UNIT_ROWS", unit),
        mock.patch("longca.cp.schedule.planner.UNIT_ROWS", unit),
    ):
        check_visits(plan)


def check_visits(plan: Plan) -> None:
    for rank in range(plan.world):
        num_rows = int(plan.sharding.num_tokens[rank])
        cut = step_masks(plan, rank, merging=True)
        contributions = contributions_of(cut, num_rows)
        begun, ended, seen = (np.zeros(num_rows, dtype=int) for _ in range(3))
        for number, (first, behind, _) in cut.items():
            here = np.zeros(num_rows, dtype=int)
            for contribution in contributions.of_step[number]:
                for rows in of(contribution, behind - first):
                    here[first:behind][rows] += 1
                    assert (begun[first:behind][rows] == 0).all() == contribution.is_first and not ended[
                        first:behind
                    ][rows].any()
                    begun[first:behind][rows] |= 1
                    ended[first:behind][rows] |= contribution.is_last
            assert here.max() == 1
            seen |= here
        assert (begun == ended).all() and (begun == seen).all() and bool(seen.all()) == contributions.complete
        assert contributions.shared == any(
            not (part.is_first and part.is_last) for step in contributions.of_step.values() for part in step
        )


def attention(scores: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) for scores L × H × keys and v keys × D; rows of −inf have no keys."""
    return scores.softmax(-1).nan_to_num(0.0) @ v, scores.logsumexp(-1)


@pytest.mark.parametrize("order", [range(4), reversed(range(4))])
def test_parts_are_the_whole(order):
    generator = torch.Generator().manual_seed(0)
    scores = (
        torch.randn(6, 2, 20, generator=generator, dtype=torch.float64) * 30
    )  # exp overflows float32 without a base
    v = torch.randn(20, 4, generator=generator, dtype=torch.float64)
    scores[0] = scores[1, :, 5:] = scores[2, :, :15] = -torch.inf
    expected, expected_lse = attention(scores, v)
    out, lse = no_keys(expected, torch.float64)
    for part in order:
        keys = slice(5 * part, 5 * part + 5)
        merge(out, lse, *attention(scores[..., keys], v[keys]))
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(lse, expected_lse)
    assert (out[0] == 0).all()
    assert (lse[0] == -torch.inf).all()


@pytest.mark.parametrize("mark", [torch.inf, -torch.inf])
@pytest.mark.parametrize("running", [-torch.inf, 1.5])
def test_a_part_without_keys_changes_nothing(mark: float, running: float):
    out = torch.full((3, 2, 4), 0.0 if running == -torch.inf else 7.0)
    lse = torch.full((3, 2), running)
    merge(out, lse, torch.zeros(3, 2, 4, dtype=torch.bfloat16), torch.full((3, 2), mark))
    assert (lse == running).all()
    assert (out == (0.0 if running == -torch.inf else 7.0)).all()


def test_many_parts_in_bfloat16_cost_one_rounding():
    """Sums in bfloat16 would be off by six times as much at 96 parts as at 2."""
    generator = torch.Generator().manual_seed(1)

    def error(num_parts: int) -> float:
        parts = torch.randn(num_parts, 500, 1, 4, generator=generator)
        out, lse = no_keys(parts[0])
        for part in parts:
            merge(out, lse, part.bfloat16(), torch.zeros(500, 1))
        return float((out - parts.mean(0)).norm() / parts.mean(0).norm())

    assert error(96) < 1.2 * error(2)
