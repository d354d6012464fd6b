"""`longca.attention` under `torch.autocast`: bit for bit what it gives without, in the dtype of its
inputs."""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch

import longca
from longca.core.errors import UserError
from longca.kernels.contract import Problem
from longca.lab.bench.check.inputs import Inputs
from longca.lab.bench.check.reference import Reference
from longca.lab.bench.check.scope import whole
from longca.masks import Mask, build_mask
from tests.dispatch.test_call import inputs

MASK = Mask.from_documents([40, 24])
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
NARROW = (torch.bfloat16, torch.float16)


def autocast(dtype: torch.dtype = torch.bfloat16, **options: Any) -> AbstractContextManager[Any]:
    return torch.autocast("cpu", dtype, **options)


def both_ways(
    forward: AbstractContextManager[Any] | None = None,
    backward: AbstractContextManager[Any] | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    batch: bool = False,
    **options: Any,
) -> list[torch.Tensor]:
    """Out, the LSE if asked for, dq, dk and dv, with forward and backward in these contexts."""
    q, k, v, dout = ((x.detach() * 3).to(dtype) for x in inputs(MASK, head_dim=16))
    if batch:
        q, k, v, dout = (torch.stack([x, -x, 2 * x]) for x in (q, k, v, dout))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    with forward or nullcontext():
        result = longca.attention(*leaves, MASK, **options)
    results = list(result) if isinstance(result, tuple) else [result]
    asked = [x for x in results if x.requires_grad]
    with backward or nullcontext():
        grads = torch.autograd.grad(
            asked, leaves, [dout, torch.ones_like(dout[..., 0], dtype=asked[-1].dtype)][: len(asked)]
        )
    return [*(x.detach() for x in results), *grads]


def same(actual: list[torch.Tensor], wanted: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) and x.dtype == y.dtype for x, y in zip(actual, wanted, strict=True))


@pytest.mark.parametrize("narrow", NARROW, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_dtype_gives_what_it_gives_without(dtype: torch.dtype, narrow: torch.dtype):
    for batch in (False, True):
        wanted = both_ways(dtype=dtype, batch=batch, return_lse=True)
        assert same(both_ways(autocast(narrow), dtype=dtype, batch=batch, return_lse=True), wanted), "forward"
        assert same(
            both_ways(autocast(narrow), autocast(narrow), dtype=dtype, batch=batch, return_lse=True), wanted
        ), "backward, too"
        assert same(both_ways(None, autocast(narrow), dtype=dtype, batch=batch, return_lse=True), wanted), (
            "backward alone"
        )


@pytest.mark.parametrize("kernel", ["naive", "sdpa"])
@pytest.mark.parametrize("dtype", DTYPES[:3], ids=str)
def test_other_kernels_do_too(kernel: str, dtype: torch.dtype):
    options: dict[str, Any] = {"dtype": dtype, "kernel": kernel, "deterministic": False}
    assert same(both_ways(autocast(), autocast(), **options), both_ways(**options))


def test_nested_contexts_and_the_one_around_stay_as_they_are():
    wanted = both_ways(return_lse=True)
    with autocast(), autocast(enabled=False), autocast(torch.float16, cache_enabled=False):
        assert same(both_ways(return_lse=True), wanted), "nested"
    with autocast():
        layer = torch.nn.Linear(8, 8)
        x = torch.randn(3, 8)
        before = layer(x)
        both_ways()
        assert (
            torch.is_autocast_enabled("cpu")
            and torch.equal(layer(x), before)
            and before.dtype == torch.bfloat16
        ), "stays on"


def test_without_gradients():
    q, k, v, _ = (x.detach() for x in inputs(MASK))
    wanted = longca.attention(q, k, v, MASK)
    for context in (torch.no_grad(), torch.inference_mode()):
        with context, autocast():
            assert torch.equal(longca.attention(q, k, v, MASK), wanted)


def test_training_after_a_first_call_in_inference_mode():
    mask = Mask.from_documents([40, 24])
    q, k, v, dout = inputs(mask)
    for kernel in ("naive", "sdpa"):
        with torch.inference_mode(), autocast():
            longca.attention(q, k, v, mask, kernel=kernel)
        longca.attention(q, k, v, mask, kernel=kernel, deterministic=False).backward(dout)
    kept = [
        x for prepared in mask.kept.values() for x in vars(prepared).values() if isinstance(x, torch.Tensor)
    ]
    assert kept and not any(x.is_inference() for x in kept)


def test_gradients_are_right():
    mask = Mask.from_windows(6, (2, 0))
    q, k, v, _ = inputs(mask, 2, 2, 2, torch.float64)
    with autocast():
        assert torch.autograd.gradcheck(
            lambda q, k, v: longca.attention(q, k, v, mask, return_lse=True), (q, k, v)
        )


def test_several_dtypes_are_refused_as_without():
    q, k, v, _ = inputs(MASK)
    for context in (nullcontext(), autocast()):
        with (
            context,
            pytest.raises(UserError, match=r"must be of one dtype .* they are torch.float32, torch.bfloat16"),
        ):
            longca.attention(q, k.bfloat16(), v, MASK)


def test_the_oracle_is_exact():
    mask = build_mask("causal", seqlen=64)
    q, k, v, dout = (x.detach() for x in inputs(mask, 2, 1, 16))
    problem = Problem(mask, 2, 1, 16, torch.float32, torch.device("cpu"), needs_backward=True)

    def emulated() -> list[torch.Tensor]:
        reference = next(Reference(problem, Inputs(q, k, v, dout), whole(problem)).groups())
        chunks = list(reference.chunks(backward=True))
        return [*(chunk.emulated.out_GRnD for chunk in chunks), *reference.keys.emulated]

    wanted = emulated()
    with autocast():
        assert same(emulated(), wanted)
    exact = torch.softmax(
        (q[:, 0].double() @ k[:, 0].double().T / math.sqrt(16)).masked_fill(~mask.to_dense(), -math.inf), -1
    )
    torch.testing.assert_close(wanted[0][0, 0].double(), exact @ v[:, 0].double(), rtol=1e-5, atol=1e-5)
