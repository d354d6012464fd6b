"""`longca.attention` with learnable sinks on a CPU: right by the definition, in both directions, by the
reference and by kernels; under autocast and torch.compile; what it refuses."""

import gc
import weakref
from typing import Any

import pytest
import torch

import longca
from longca.core.errors import UserError
from longca.dispatch import blockwise
from longca.masks import Mask, build_mask
from longca.ops import sinks
from tests.dispatch.test_call import EMPTY_ROWS, inputs, near
from tests.helpers.kernels.masks_for_tests import PATTERNS, pattern_mask
from tests.helpers.kernels.plain_attention import plain_attention

DOCUMENTS = Mask.from_documents([40, 24])
SINKS = torch.tensor([0.7, -2.0, 3.0, -torch.inf])  # the last head has none


def check(mask: Mask, dtype: torch.dtype = torch.float32, tolerance: float = 1e-5, **options: Any) -> None:
    q, k, v, dout = inputs(mask, dtype=dtype)
    leaf = SINKS.clone().requires_grad_()
    result = longca.attention(q, k, v, mask, sinks=leaf, **options)
    out, lse = result if isinstance(result, tuple) else (result, None)
    plain = plain_attention(q, k, v, dout, mask.dense(), SINKS)
    near(out, plain.out, tolerance)
    if lse is not None:
        near(lse, plain.lse)
    grads = torch.autograd.grad(out, (q, k, v, leaf), dout)
    for actual, wanted in zip(grads, plain.grads, strict=True):
        near(actual, wanted, tolerance * 10 if actual.ndim == 1 else tolerance)


@pytest.mark.sample(6)
@pytest.mark.parametrize("kernel", [None, "naive"])
@pytest.mark.parametrize("mask", [*map(pattern_mask, PATTERNS), EMPTY_ROWS], ids=str)
def test_sinks_join_the_softmax(mask: Mask, kernel: str | None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(blockwise.MOST_SCORES, "cpu", 10_000)
    monkeypatch.setitem(sinks.MOST_ELEMENTS, "cpu", 200)  # the gradient's sum in several steps
    check(mask, kernel=kernel, return_lse=True)


@pytest.mark.parametrize("kernel", [None, "naive"])
def test_half_precision(kernel: str | None):
    check(pattern_mask("causal_document"), torch.bfloat16, 3e-2, kernel=kernel)


def test_gradients_of_all_inputs_by_out_and_lse():
    for mask in (Mask.from_windows(6, (2, 0), (-1, 1)), EMPTY_ROWS.crop((0, 8), (0, 9))):
        q, k, v, _ = inputs(mask, 2, 2, 2, torch.float64)
        leaf = torch.tensor([0.3, -1.0], dtype=torch.float64, requires_grad=True)

        def attended(*x: torch.Tensor, mask: Mask = mask) -> Any:
            return longca.attention(*x[:3], mask, sinks=x[3], return_lse=True, scale=0.7)

        assert torch.autograd.gradcheck(attended, (q, k, v, leaf))


@pytest.mark.parametrize("kernel", [None, "naive"])
def test_rows_without_keys(kernel: str | None):
    q, k, v, _ = inputs(EMPTY_ROWS)
    leaf = SINKS.clone().requires_grad_()
    out, lse = longca.attention(q, k, v, EMPTY_ROWS, sinks=leaf, return_lse=True, kernel=kernel)
    assert (out[:3] == 0).all() and torch.equal(lse[:3], SINKS.expand(3, -1))
    of_empty = torch.autograd.grad(out[:3].sum(), (q, k, v, leaf), retain_graph=True)
    assert all((grad == 0).all() for grad in of_empty)
    assert all(x.isfinite().all() for x in torch.autograd.grad(out.sum(), (q, k, v, leaf)))


@pytest.mark.parametrize("kernel", [None, "naive"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_a_batch_shares_its_sinks(kernel: str | None, dtype: torch.dtype):
    """In any dtype of the sinks: their gradient has it, and is rounded once."""
    batch = [torch.stack([x.detach(), 2 * x.detach()]).requires_grad_() for x in inputs(DOCUMENTS)[:3]]
    leaves = [SINKS.to(dtype).requires_grad_() for _ in range(2)]
    out = longca.attention(*batch, DOCUMENTS, sinks=leaves[0], kernel=kernel)
    single = [longca.attention(*(x[n] for x in batch), DOCUMENTS, sinks=leaves[1].float(), kernel=kernel) for n in (0, 1)]  # noqa: E501  # fmt: skip
    torch.testing.assert_close(out, torch.stack(single), rtol=0, atol=0)
    actual = torch.autograd.grad(out.sin().sum(), leaves[0])[0]
    wanted = torch.autograd.grad(torch.stack(single).sin().sum(), leaves[1])[0]
    assert actual.dtype == dtype
    torch.testing.assert_close(actual, wanted, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-6)


def step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, leaf: torch.Tensor, **options: Any) -> Any:
    out, lse = longca.attention(q * 2, k, v, DOCUMENTS, sinks=leaf, return_lse=True, **options)
    return torch.tanh(out) * 3 + lse.unsqueeze(-1).clamp(min=-9)


@pytest.mark.parametrize("kernel", [None, "naive"])
@pytest.mark.parametrize("kind", ["compiled", "autocast"])
def test_the_compiler_and_autocast_change_nothing(kind: str, kernel: str | None):
    q, k, v, dout = inputs(DOCUMENTS, head_dim=16)
    leaf = SINKS.clone().requires_grad_()
    results = []
    torch._dynamo.reset()
    for other in (False, True):
        function = torch.compile(step, backend="aot_eager") if other and kind == "compiled" else step
        with torch.autocast("cpu", torch.bfloat16, enabled=other and kind == "autocast"):
            out = function(q, k, v, leaf, kernel=kernel)
            results.append([out, *torch.autograd.grad(out, (q, k, v, leaf), dout)])
    for actual, wanted in zip(*results, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("kernel", [None, "naive"])
def test_memory_is_freed_with_the_last_reference(kernel: str | None):
    q, k, v, _ = inputs(DOCUMENTS)
    out = longca.attention(q, k, v, DOCUMENTS, sinks=SINKS, kernel=kernel)
    result = weakref.ref(out)
    gc.disable()
    try:
        del out
        assert result() is None
    finally:
        gc.enable()


def test_sinks_alone_may_require_gradients():
    q, k, v, dout = (x.detach() for x in inputs(DOCUMENTS))
    for kernel in (None, "naive"):
        leaf = SINKS.clone().requires_grad_()
        (grad,) = torch.autograd.grad(
            longca.attention(q, k, v, DOCUMENTS, sinks=leaf, kernel=kernel), leaf, dout
        )
        near(grad, plain_attention(q, k, v, dout, DOCUMENTS.dense(), SINKS).grads[3], 1e-4)


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ([0.0] * 4, {}, r"sinks must be a tensor, and it is list. torch.as_tensor\(x\) makes one"),
        (
            torch.zeros(2),
            {},
            r"sinks must be \(4,\), a logit for each query head, and it is \(2,\). Give as many",
        ),
        (torch.zeros(1, 4), {}, r"it is \(1, 4\). sinks.flatten\(\) makes one dimension"),
        (torch.zeros(4, dtype=torch.int64), {}, "sinks must be bf16, .* and it is torch.int64. Convert it"),
        (torch.zeros(4, device="meta"), {}, "sinks must be on cpu, where q is, and it is on meta. Move it"),
        (
            torch.zeros(4),
            {"kernel": "sdpa"},
            "Kernel 'sdpa' cannot do this call: sinks .*: it returns no LSE",
        ),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(given: Any, options: dict[str, Any], message: str):
    q, k, v, _ = (x.detach() for x in inputs(build_mask("causal", seqlen=8)))
    with pytest.raises(UserError, match=message) as error:
        longca.attention(q, k, v, build_mask("causal", seqlen=8), sinks=given, **options)
    assert "\n" not in str(error.value) and len(str(error.value)) < 250
