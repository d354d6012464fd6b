"""Kernels that promise the same bits in every run are held to it, and only proven ones count as
deterministic."""

import pytest
import torch

from longca.lab.bench.check.judge import Judge
from longca.lab.bench.check.plan import NUM_BIT_RUNS, CheckPlan
from longca.lab.bench.measure.kernel import measure_kernel
from longca.lab.bench.workers.pool import Pool
from longca.lab.studies import Measure
from longca.lab.studies.playoff.rules import PlayoffRules
from tests.helpers.bench.cells import small_cell
from tests.helpers.bench.misbehaving import MEASURE, kernel_cell
from tests.helpers.kernels.cases import Case, pattern_mask

CPU = torch.device("cpu")
SAME = {"dq": 1, "dk": 2, "dv": 3}


def backward_cell(kernel: str):
    return kernel_cell(kernel, seqlen=64, direction="bwd", head_dim=16)


@pytest.mark.parametrize(("kernel", "promises"), [("naive", True), ("sdpa", False)])
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_bits_are_compared_where_they_are_promised(kernel: str, promises: bool, direction: str) -> None:
    result = measure_kernel(
        small_cell(kernel, "causal", direction, dtype="bf16"), Measure.fixed(warmup=1, repeats=3), CPU
    )
    assert result.outcome.status == "ok" and result.accuracy is not None
    proven = promises and direction == "bwd"
    assert result.accuracy.deterministic is (True if proven else None)
    assert result.accuracy.bit_runs == (NUM_BIT_RUNS if proven else 0) and NUM_BIT_RUNS == 4


def test_sums_in_random_order_are_caught(pool: Pool) -> None:
    result = pool.measure(backward_cell("random_order"), MEASURE)
    assert result.outcome.status == "incorrect" and result.samples is None
    assert result.outcome.reason.startswith("not deterministic: 4 backward calls on the same inputs gave ")
    assert result.outcome.reason.endswith(" different dq"), "dk and dv are the same"
    assert result.accuracy is not None and result.accuracy.deterministic is False
    kept = pool.measure(backward_cell("fixed_order"), MEASURE)
    assert kept.outcome.status == "ok" and kept.accuracy is not None and kept.accuracy.deterministic


def test_players_are_held_to_it_as_well(pool: Pool) -> None:
    players = pool.play(
        [backward_cell(kernel) for kernel in ("naive", "random_order", "fixed_order")],
        MEASURE,
        PlayoffRules(max_rounds=6, min_rounds=6, max_seconds=5.0, own_files=True),
    )
    results = [player.result for player in players]
    assert [result.outcome.status for result in results] == ["ok", "incorrect", "ok"]
    assert [result.accuracy and result.accuracy.deterministic for result in results] == [True, False, True]


def test_fewer_runs_prove_nothing() -> None:
    case = Case(pattern_mask("causal", 2), 4, 2)
    judge = Judge(CheckPlan(case.cell("naive", "bwd"), case.problem("bwd"), seed=0))
    with pytest.raises(AssertionError, match="after the checked call"):
        judge.check_bits([SAME] * NUM_BIT_RUNS)
    judge.accuracy = measure_kernel(
        small_cell("naive", "causal"), Measure.fixed(warmup=1, repeats=2), CPU
    ).accuracy
    for runs in ([SAME] * (NUM_BIT_RUNS - 1), [{"dq": 1}] * NUM_BIT_RUNS):
        with pytest.raises(ValueError, match="digests of 4 backward calls"):
            judge.check_bits(runs)
    assert judge.check_bits([SAME] * NUM_BIT_RUNS) is None
    reason = judge.check_bits([SAME, SAME, {**SAME, "dk": 7}, {**SAME, "dk": 8, "dv": 9}])
    assert reason is not None and reason.endswith("gave 3 different dk and 2 different dv")
