"""Duties of every kernel, over all that the registry finds."""

import subprocess
import sys

import pytest
import torch

from longca.core.plugin import Registry
from longca.kernels.contract import Forward, Kernel, Prepared
from tests.helpers.kernels.cases import Case, hand_made_cases, pattern_cases, telling_cases
from tests.helpers.kernels.plain_attention import Plain, plain_attention

SLOW_COMPILE_MS = 500
NAMES = Registry("kernel").names()
ATTENTION = [name for name in NAMES if Registry("kernel").load(name).family != "control"]
ON_CPU = [name for name in ATTENTION if Registry("kernel").load(name).available("cpu") is None]


@pytest.fixture(scope="module")
def cases() -> list[tuple[Case, Plain]]:
    """Every case with its right answer, the telling ones first."""
    return [
        (case, plain_attention(*case.inputs(), case.mask.dense()))
        for case in telling_cases() + pattern_cases() + hand_made_cases()
    ]


@pytest.mark.parametrize("name", NAMES)
def test_says_what_it_is(name: str) -> None:
    kernel = Registry("kernel").load(name)
    assert isinstance(kernel, Kernel)
    assert kernel.label and kernel.family in ("dense", "sparse", "both", "control")
    assert kernel.summary and "\n" not in kernel.summary and len(kernel.summary) <= 120
    assert kernel.url.startswith("https://") or kernel.family == "control"
    assert isinstance(kernel.needs, tuple) and "torch" in kernel.needs
    for device_type in ("cpu", "cuda"):
        reason = kernel.available(device_type)
        assert reason is None or reason


def test_all_load_without_torch() -> None:
    code = (
        "import sys; from longca.core.plugin import Registry; kernels = Registry('kernel').load_all();"
        "[kernel.available('cpu') for kernel in kernels];"
        "print(sorted({'torch', 'triton', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", NAMES)
def test_supports_is_pure(name: str) -> None:
    kernel = Registry("kernel").load(name)
    for case in pattern_cases():
        for direction in ("fwd", "bwd"):
            for device_type in ("cpu", "cuda"):
                answers = {
                    kernel.supports(case.cell(name, direction).call_spec, case.mask.traits, device_type)
                    for _ in range(2)
                }
                assert len(answers) == 1
                assert answers <= {None} or all(answers)


@pytest.mark.parametrize(
    "slow_compilers",
    [1, pytest.param(len(telling_cases()), marks=pytest.mark.slow)],
    ids="up to {} compiled".format,
)
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name == "as_released_flex" else name for name in ON_CPU],
)
def test_agrees_with_the_definition(
    name: str, direction: str, slow_compilers: int, cases: list[tuple[Case, Plain]]
) -> None:
    """All cases; of a kernel that compiles long, so many."""
    kernel = Registry("kernel").load(name)
    tried = 0
    compile_ms = 0.0
    for number, (case, plain) in enumerate(cases):
        if compile_ms > SLOW_COMPILE_MS and number >= slow_compilers:
            break
        if kernel.supports(case.cell(name, direction).call_spec, case.mask.traits, "cpu") is None:
            prepared = kernel.prepare(case.problem(direction))
            compile_ms = prepared.costs.get("compile_ms", 0.0)
            _check(case, plain, prepared, case.inputs(), tolerance=2e-5)
            tried += 1
    if not tried:
        pytest.skip(f"{name} supports no case of {direction} on CPU")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if "flex" in name else name for name in ON_CPU]
)
def test_agrees_in_bfloat16(name: str) -> None:
    kernel = Registry("kernel").load(name)
    direction = "bwd"
    case = next(
        case for case in pattern_cases() if case.mask.name == "causal_document" and case.num_q_heads == 8
    )
    if kernel.supports(case.cell(name, direction, "bf16").call_spec, case.mask.traits, "cpu") is not None:
        direction = "fwd"
    inputs = case.inputs(torch.bfloat16)
    prepared = kernel.prepare(case.problem(direction, torch.bfloat16))
    _check(case, plain_attention(*inputs, case.mask.dense()), prepared, inputs, tolerance=1.5e-2)


@pytest.mark.parametrize("name", ON_CPU)
def test_backward_repeats_and_leaves_no_trace(name: str) -> None:
    kernel = Registry("kernel").load(name)
    case = hand_made_cases()[0]
    if (reason := kernel.supports(case.cell(name, "bwd").call_spec, case.mask.traits, "cpu")) is not None:
        pytest.skip(reason)
    prepared = kernel.prepare(case.problem("bwd"))
    q, k, v, dout = (prepared.to_layout(x) for x in case.inputs())
    before = [x.clone() for x in (q, k, v, dout)]
    forward = prepared.forward(q, k, v)
    first = prepared.backward(forward, dout)
    second = prepared.backward(forward, dout)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(before, (q, k, v, dout), strict=True))
    assert all(x.grad is None for x in (q, k, v, dout))
    assert not any(x.requires_grad for x in (forward.out, *first))


def _check(
    case: Case, plain: Plain, prepared: Prepared, inputs: list[torch.Tensor], tolerance: float
) -> None:
    q, k, v, dout = (prepared.to_layout(x) for x in inputs)
    assert torch.equal(prepared.from_layout(q), inputs[0])
    forward = prepared.forward(q, k, v)
    assert isinstance(forward, Forward)
    _near(case, "out", prepared.from_layout(forward.out), plain.out, tolerance)
    empty = plain.lse == -torch.inf
    assert (prepared.from_layout(forward.out)[empty] == 0).all(), f"{case}: rows without keys"
    if forward.lse is not None:
        lse = prepared.lse_from_layout(forward.lse)
        assert lse.dtype == torch.float32 and torch.equal(lse == -torch.inf, empty), (
            f"{case}: lse of rows without keys"
        )
        _near(case, "lse", lse[~empty], plain.lse[~empty], tolerance)
    if prepared.problem.needs_backward:
        grads = prepared.backward(forward, dout)
        for name, grad, right in zip(("dq", "dk", "dv"), grads, plain.grads, strict=True):
            _near(case, name, prepared.from_layout(grad), right, tolerance)
        assert (prepared.from_layout(grads[0])[empty] == 0).all(), f"{case}: gradients of rows without keys"


def _near(case: Case, name: str, result: torch.Tensor, right: torch.Tensor, tolerance: float) -> None:
    assert result.shape == right.shape, f"{case}: {name}"
    error = torch.linalg.vector_norm(result.double() - right) / max(
        float(torch.linalg.vector_norm(right)), 1.0
    )
    assert error <= tolerance, f"{case}: {name} is off by {error:.1e}"
