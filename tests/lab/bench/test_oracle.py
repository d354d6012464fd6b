"""The oracle: its dense mask rows, its reference, its budget, and what it lets pass."""

from typing import get_args

import numpy as np
import pytest
import torch

from longca.core.plugin import Registry
from longca.kernels.contract import Problem
from longca.lab.bench.check.inputs import DTYPES, Inputs, input_seed, make_inputs
from longca.lab.bench.check.oracle import Oracle, wrong
from longca.lab.bench.check.reference import DenseMaskRows
from longca.lab.bench.check.scope import MIN_ROWS, ROWS_PER_TILE, affordable, whole
from longca.lab.bench.measure.kernel import measure_kernel
from longca.lab.studies.cell import InputValues
from longca.lab.studies.grid import Measure
from longca.lab.studies.record import Accuracy
from longca.masks import Mask, build_mask
from longca.masks.band import INF, as_bands
from tests.helpers.bench.cells import small_cell
from tests.helpers.kernels.cases import Case, hand_made_cases, pattern_cases
from tests.helpers.kernels.plain_attention import plain_attention

CPU = torch.device("cpu")


def _inputs(case: Case, dtype: torch.dtype = torch.float32) -> Inputs:
    return Inputs(*case.inputs(dtype))


def _judge(case: Case, dtype: torch.dtype = torch.float32, **given: object) -> Accuracy:
    """The judgement of the right answer, but for the given tensors."""
    inputs = _inputs(case, dtype)
    plain = plain_attention(inputs.q_THD, inputs.k_TGD, inputs.v_TGD, inputs.dout_THD, case.mask.dense())
    answer = {"out_THD": plain.out, "lse_TH": plain.lse, "grads": plain.grads, **given}
    return Oracle(case.problem("bwd", dtype), inputs).judge(**answer)


@pytest.mark.parametrize("case", pattern_cases() + hand_made_cases(), ids=str)
def test_dense_rows_are_those_of_the_mask(case: Case) -> None:
    mask = case.mask
    dense = np.array(case.mask.dense(), ndmin=3)
    for group in range(mask.num_groups):
        dense_rows = DenseMaskRows(mask, group, CPU)
        for start, end in ((0, mask.seqlen_q), (mask.seqlen_q // 3, mask.seqlen_q // 2 + 1)):
            assert np.array_equal(dense_rows.rows(range(start, end)).numpy(), dense[group, start:end])
            assert dense_rows.most_keys(start, end) >= dense[group, start:end].any(0).sum()
        scattered = tuple(range(0, mask.seqlen_q, 7))
        assert np.array_equal(dense_rows.rows(scattered).numpy(), dense[group, list(scattered)])


@pytest.mark.parametrize("case", pattern_cases() + hand_made_cases(), ids=str)
def test_the_truth_has_no_error(case: Case) -> None:
    accuracy = _judge(case)
    assert wrong(accuracy) is None
    assert max(accuracy.relative.values()) < 1e-8
    assert accuracy.budget.keys() == {"out", "lse", "dq", "dk", "dv"} == accuracy.relative.keys()
    empty = bool((plain_attention(*case.inputs(), case.mask.dense()).lse == -torch.inf).any())
    assert accuracy.empty_rows_ok is (True if empty else None)


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    case = pattern_cases()[5]
    at_once = _judge(case, torch.bfloat16)
    monkeypatch.setattr("longca.lab.bench.check.reference.CHUNK_PAIRS", {"cpu": 3000})
    in_chunks = _judge(case, torch.bfloat16)
    assert in_chunks.budget == pytest.approx(at_once.budget, rel=1e-3)


def test_the_budget_follows_the_dtype() -> None:
    case = pattern_cases()[11]
    budgets = {name: _judge(case, dtype).budget["out"] for name, dtype in DTYPES.items()}
    assert budgets["fp32"] < 1e-5 < budgets["fp16"] < 3e-3 < budgets["bf16"] < 2e-2


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_one_key_too_many_is_seen(dtype: str) -> None:
    case = Case(build_mask("causal", seqlen=200), 4, 2)
    inputs = _inputs(case, DTYPES[dtype])
    off = build_mask("causal", seqlen=200).shift(0, 1).dense()
    plain = plain_attention(inputs.q_THD, inputs.k_TGD, inputs.v_TGD, inputs.dout_THD, off)
    assert "out is off" in str(wrong(Oracle(case.problem("fwd", DTYPES[dtype]), inputs).judge(plain.out)))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["out", "lse", "dq", "dk", "dv"])
def test_what_is_not_finite_never_passes(name: str, value: float) -> None:
    case = pattern_cases()[11]
    plain = plain_attention(*case.inputs(), case.mask.dense())
    answer = {"out": plain.out, "lse": plain.lse, **dict(zip(("dq", "dk", "dv"), plain.grads, strict=True))}
    answer[name] = answer[name].clone()
    answer[name][(-1,) * answer[name].ndim] = value
    grads = answer["dq"], answer["dk"], answer["dv"]
    accuracy = Oracle(case.problem("bwd"), _inputs(case)).judge(answer["out"], answer["lse"], grads)
    assert wrong(accuracy) == f"{name} is not finite"
    assert name not in accuracy.relative


@pytest.mark.parametrize("name", ["out", "dq"])
def test_rows_without_keys_must_be_zero(name: str) -> None:
    case = hand_made_cases()[0]
    plain = plain_attention(*case.inputs(), case.mask.dense())
    row = int((plain.lse[:, 0] == -torch.inf).nonzero()[0])
    out = plain.out.clone()
    dq = plain.grads[0].clone()
    {"out": out, "dq": dq}[name][row] = 1e-30
    accuracy = Oracle(case.problem("bwd"), _inputs(case)).judge(out, plain.lse, (dq, *plain.grads[1:]))
    assert accuracy.empty_rows_ok is False and "rows without keys" in str(wrong(accuracy))


def test_gradients_that_cancel_do_not_fail_a_good_kernel() -> None:
    """One key a row: dq and dk are exactly 0, and rounding errors are infinitely many times that."""
    case = Case(Mask(64, 64, (as_bands([(0, 64, 0, 64, 0, 0)]),)), 4, 2)
    for dtype in (torch.float32, torch.bfloat16):
        prepared = Registry("kernel").load("naive").prepare(case.problem("bwd", dtype))
        inputs = _inputs(case, dtype)
        forward = prepared.forward(
            *(prepared.to_layout(x) for x in (inputs.q_THD, inputs.k_TGD, inputs.v_TGD))
        )
        grads = tuple(
            prepared.from_layout(x) for x in prepared.backward(forward, prepared.to_layout(inputs.dout_THD))
        )
        oracle = Oracle(case.problem("bwd", dtype), inputs)
        assert (
            wrong(
                oracle.judge(prepared.from_layout(forward.out), prepared.lse_from_layout(forward.lse), grads)
            )
            is None
        )
        assert (
            wrong(oracle.judge(prepared.from_layout(forward.out), None, (inputs.q_THD, *grads[1:])))
            is not None
        )


def test_heads_out_of_scope_are_not_judged() -> None:
    case = Case(build_mask("causal", seqlen=50), 8, 4)
    plain = plain_attention(*case.inputs(), case.mask.dense())
    out = plain.out.clone()
    out[:, 4:6] = 0  # the query heads of KV head 2
    for kv_heads, passes in (((1, 3), True), ((2,), False)):
        accuracy = Oracle(case.problem("fwd"), _inputs(case), kv_heads).judge(out)
        assert (wrong(accuracy) is None) == passes
        assert str(kv_heads[0]) in accuracy.scope and "of 4" in accuracy.scope


def _problem(seqlen: int, needs_backward: bool = True) -> Problem:
    return Problem(build_mask("causal", seqlen=seqlen), 8, 4, 16, torch.float32, CPU, needs_backward)


def test_scope_is_all_where_cheap_then_rows_of_every_head_and_tile() -> None:
    problem = _problem(1000)
    assert affordable(problem, seed=0, budget_flops=1e12) == whole(problem) and whole(problem).text == "all"
    row_flops = 7 * 2 * problem.mask.area / 1000 * 16 * 2
    for budget_rows, seed in ((2000, 0), (400, 1), (1, 2)):
        scope = affordable(problem, seed, budget_rows * row_flops)
        rows = [(head, row) for part in scope.parts for head in part.kv_heads for row in part.rows]
        assert scope.is_sample and len(set(rows)) == len(rows) == scope.num_rows
        assert 0.5 * budget_rows <= len(rows) <= max(budget_rows, MIN_ROWS) + 2 * ROWS_PER_TILE
        assert scope.kv_heads == (0, 1, 2, 3) and {row // ROWS_PER_TILE for _, row in rows} == set(range(16))
        assert {row for _, row in rows} >= {0, ROWS_PER_TILE - 1, 1000 - ROWS_PER_TILE, 999}, (
            "edges are whole"
        )
        assert (
            "all 4 KV heads, all 16 tiles of 64 rows" in scope.text
            and f"{100 * len(rows) / 4000:.2g} %" in scope.text
        )
        assert (
            scope
            == affordable(problem, seed, budget_rows * row_flops)
            != affordable(problem, seed + 1, budget_rows * row_flops)
        )
    assert affordable(_problem(1), seed=0, budget_flops=0) == whole(_problem(1))


def test_scope_says_which_tiles_it_left_out() -> None:
    scope = affordable(_problem(64 * 1000), seed=0, budget_flops=1)
    assert "all 4 KV heads" in scope.text and "of 1,000 tiles of 64 rows" in scope.text
    gaps = np.diff(sorted({row for part in scope.parts for row in part.rows}))
    assert gaps.max() < 2.5 * 64 * 1000 / MIN_ROWS, "they are spread over the sequence"


@pytest.mark.parametrize(
    "mask", ["causal", "causal_document", "global_sliding_window", "block_sparse_uniform"]
)
def test_some_rows_judge_the_gradients_of_all_keys(mask: str) -> None:
    """Backward of a dout that is zero elsewhere: exact, though rows were left out."""
    cell = small_cell(mask=mask, seqlen=512, direction="bwd")
    pattern = build_mask(mask, **cell.mask_key)
    problem = Problem(pattern, cell.num_q_heads, cell.num_kv_heads, cell.head_dim, torch.float32, CPU, True)
    inputs = make_inputs(cell, CPU)
    oracle = Oracle(problem, inputs, scope=affordable(problem, seed=3, budget_flops=1))
    assert oracle.scope.num_rows < 1024 and torch.count_nonzero(oracle.dout_THD) < inputs.dout_THD.numel()
    plain = plain_attention(inputs.q_THD, inputs.k_TGD, inputs.v_TGD, oracle.dout_THD, pattern.dense())
    accuracy = oracle.judge(plain.out, plain.lse, plain.grads)
    assert wrong(accuracy) is None and max(accuracy.relative.values()) < 1e-8
    whole_dout = plain_attention(inputs.q_THD, inputs.k_TGD, inputs.v_TGD, inputs.dout_THD, pattern.dense())
    assert wrong(oracle.judge(plain.out, plain.lse, whole_dout.grads)) is not None


def test_inputs_are_shared_by_kernels_and_directions_only() -> None:
    cell = small_cell()
    same = [cell, small_cell("sdpa"), small_cell(direction="bwd")]
    other = [
        small_cell(seed=1),
        small_cell(dtype="bf16"),
        small_cell(mask="full_document"),
        small_cell(num_kv_heads=1),
        small_cell(seqlen=129),
    ]
    assert len({input_seed(entry) for entry in same}) == 1
    assert len({input_seed(entry) for entry in (cell, *other)}) == 1 + len(other)
    first, second = (make_inputs(entry, CPU) for entry in same[:2])
    assert torch.equal(first.q_THD, second.q_THD) and torch.equal(first.dout_THD, second.dout_THD)
    assert first.q_THD.shape == (128, 4, 16) and first.k_TGD.shape == (128, 2, 16)


def test_inputs_of_other_values_are_judged() -> None:
    """bf16 as a kernel has it is right under each kind of values, and the wrong scale is not."""
    tops = {}
    for values in get_args(InputValues):
        direction = "fwd" if values == "constant" else "bwd"
        cell = small_cell("sdpa", dtype="bf16", direction=direction, input_values=values)
        result = measure_kernel(cell, Measure.fixed(warmup=0, repeats=1), CPU)
        assert result.outcome.status == "ok", (values, result.outcome)
        inputs = make_inputs(cell, CPU)
        tops[values] = (
            float(inputs.q_THD.abs().max()),
            float(inputs.q_THD.abs().min()),
            len(inputs.v_TGD.unique()),
        )
    assert tops["constant"] == (1, 1, 1) and tops["signs"] == (1, 1, 2)
    assert tops["small"][0] < 0.1 < 1 < tops["normal"][0]


def test_masks_seen_by_nobody_are_judged() -> None:
    case = Case(Mask(5, 5, (as_bands([(0, 1, 4, 5, INF, INF)]),)), 2, 1)
    accuracy = Oracle(case.problem("fwd"), _inputs(case)).judge(torch.zeros(5, 2, 16))
    assert wrong(accuracy) is None and accuracy.empty_rows_ok
