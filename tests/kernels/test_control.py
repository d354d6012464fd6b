"""Controls: no attention, and what one call does is known beforehand."""

import time
from dataclasses import replace

import pytest
import torch

from longca.core.plugin import Registry
from longca.core.schema import CallSpec, Work
from longca.kernels.control import Control, PreparedControl
from longca.masks import build_mask
from tests.helpers.kernels.cases import Case

CONTROLS = [name for name in Registry("kernel").names() if Registry("kernel").load(name).family == "control"]
CALL = CallSpec(2, 1, 16, "fp32", "fwd")
UNTIMED = (1.0,)


def full(seqlen: int) -> Case:
    return Case(build_mask("full", seqlen=seqlen), 2, 1)


def test_there_are_three() -> None:
    assert CONTROLS == ["control", "device_copy", "matmul"]


@pytest.mark.parametrize("name", CONTROLS)
def test_says_its_work_and_is_ready_to_be_called(name: str) -> None:
    control = Registry("kernel").load(name)
    assert isinstance(control, Control)
    work = control.work(CALL, 64)
    assert len(work.model_dump(exclude_none=True)) == 1 and all(
        value > 0 for value in work.model_dump(exclude_none=True).values()
    )
    assert isinstance(control.prepare(full(64).problem("fwd")), PreparedControl)


@pytest.mark.parametrize("name", [name for name in Registry("kernel").names() if name not in CONTROLS])
def test_attention_has_no_work_of_its_own(name: str) -> None:
    assert Registry("kernel").load(name).work(CALL, 64) is None


@pytest.mark.parametrize("name", CONTROLS)
def test_one_cell_for_each_length_is_enough(name: str) -> None:
    control = Registry("kernel").load(name)
    for mask, direction, supported in (
        ("full", "fwd", True),
        ("causal", "fwd", False),
        ("full", "bwd", False),
    ):
        case = Case(build_mask(mask, seqlen=16), 1, 1)
        reason = control.supports(case.cell(name, direction).call_spec, case.mask.traits, "cpu")
        assert (reason is None) == supported


def test_lasts_at_least_as_long_as_it_says() -> None:
    control = Registry("kernel").load("control")
    for seqlen in (64, 2048):
        prepared = control.prepare(full(seqlen).problem("fwd"))
        start = time.perf_counter_ns()
        prepared.call()
        assert (time.perf_counter_ns() - start) / 1e6 >= control.work(CALL, seqlen).duration_ms


def test_longer_for_more_tokens_within_bounds() -> None:
    control = Registry("kernel").load("control")
    works = [control.work(CALL, seqlen) for seqlen in (1, 1024, 4096, 1 << 19)]
    assert works == [Work(duration_ms=duration_ms) for duration_ms in (0.5, 1.0, 4.0, 20.0)]


def test_the_product_counts_its_own_operations() -> None:
    assert Registry("kernel").load("matmul").work(CALL, 100) == Work(flops=2 * 100**3)


def test_the_copy_counts_what_is_read_and_what_is_written() -> None:
    for dtype, size in (("bf16", 2), ("fp16", 2), ("fp32", 4)):
        call = replace(CALL, dtype=dtype)
        assert Registry("kernel").load("device_copy").work(call, 100) == Work(
            traffic_bytes=2 * size * 100 * 2 * 16
        )


@pytest.mark.parametrize("seqlen", [1, 3, 64, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["matmul", "device_copy"])
def test_is_right_within_its_budget_and_not_before_it_is_called(
    name: str, dtype: torch.dtype, seqlen: int
) -> None:
    prepared = Registry("kernel").load(name).prepare(full(seqlen).problem("fwd", dtype))
    before = prepared.judge(UNTIMED)
    ((tensor, budget),) = before.budget.items()
    assert before.relative.get(tensor, 1.0) > budget
    prepared.call()
    assert prepared.judge(UNTIMED).relative[tensor] <= budget
