"""The costs of preparing are measured for records. In use, a mask is planned once and its kernel is not
called to be timed."""

from typing import Any

import pytest
import torch

import longca
from longca.core.plugin import Registry
from longca.kernels.contract import Problem
from longca.ops.band import plan
from tests.helpers.kernels.masks_for_tests import pattern_mask

MASK = pattern_mask("causal_document")


def problem(*, records_costs: bool) -> Problem:
    return Problem(
        MASK, 4, 2, 64, torch.bfloat16, torch.device("cpu"), needs_backward=True, records_costs=records_costs
    )


@pytest.mark.parametrize("records_costs", [True, False])
def test_band_is_planned_twice_and_called_for_a_record_alone(
    records_costs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    real = plan.plan_band_attention
    monkeypatch.setattr(
        plan, "plan_band_attention", lambda *args, **options: (done.append("plan"), real(*args, **options))[1]
    )
    monkeypatch.setattr(
        "longca.kernels.backends.band.first_call_ms", lambda prepared: float(done.append("call") is None)
    )
    monkeypatch.setattr("longca.kernels.backends.band.wait", lambda device: done.append("wait"))
    costs = Registry("kernel").load("band").prepare(problem(records_costs=records_costs)).costs
    assert [entry for entry in done if entry != "wait"] == (
        ["plan", "plan", "call"] if records_costs else ["plan"]
    )
    assert ("wait" in done) == records_costs == ("compile_ms" in costs)
    assert costs["plan_ms"] > 0 and costs["metadata_bytes"] > 0


@pytest.mark.parametrize("kernel", ["flex"])
def test_other_kernels_compile_in_their_first_call(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        f"longca.kernels.backends.{kernel}.first_call_ms", lambda prepared: pytest.fail("it was called")
    )
    assert "compile_ms" not in Registry("kernel").load(kernel).prepare(problem(records_costs=False)).costs


@pytest.mark.parametrize("face", ["attention", "context_parallel"])
def test_public_faces_prepare_kernels_for_use(face: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Registry("kernel").load("naive")
    asked = list[bool]()
    real = type(kernel).prepare
    monkeypatch.setattr(
        type(kernel),
        "prepare",
        lambda self, problem: (asked.append(problem.records_costs), real(self, problem))[1],
    )
    q, k, v = (torch.randn(MASK.seqlen_q, heads, 16) for heads in (2, 1, 1))
    if face == "attention":
        longca.attention(q, k, v, MASK, kernel="naive")
    else:
        with_ranks: Any = longca.context_parallel(
            MASK, num_q_heads=2, num_kv_heads=1, head_dim=16, kernel="naive", device="cpu"
        )
        with_ranks.close()
    assert asked and not any(asked)
