"""`longca.attention` on a CPU: right by the definition, forward, by gradients and by its LSE, and what it
refuses."""

from typing import Any

import numpy as np
import pytest
import torch

import longca
from longca.core.errors import UserError
from longca.core.plugin import Registry
from longca.dispatch import blockwise
from longca.dispatch.call import problem_for
from longca.kernels.contract import Kernel, Problem
from longca.masks import Mask, build_mask
from tests.helpers.kernels.masks_for_tests import PATTERNS, pattern_mask
from tests.helpers.kernels.plain_attention import Plain, plain_attention

EMPTY_ROWS = Mask.from_bands(20, [[3, 9, 0, 8, -2, 0], [12, 20, 12, 18, 0, np.inf]], seqlen_k=25)


def inputs(
    mask: Mask,
    num_q_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 8,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> list[torch.Tensor]:
    """q, k, v, which require gradients, and a gradient of the output."""
    random = torch.Generator().manual_seed(seed)
    shapes = (
        (mask.seqlen_q, num_q_heads),
        (mask.seqlen_k, num_kv_heads),
        (mask.seqlen_k, num_kv_heads),
        (mask.seqlen_q, num_q_heads),
    )
    tensors = [torch.randn(*shape, head_dim, generator=random).to(dtype) for shape in shapes]
    return [*(x.requires_grad_() for x in tensors[:3]), tensors[3]]


def check(mask: Mask, tolerance: float = 1e-5, **options: Any) -> Plain:
    q, k, v, dout = inputs(mask)
    result = longca.attention(q, k, v, mask, **options)
    out, lse = result if isinstance(result, tuple) else (result, None)
    plain = plain_attention(q, k, v, dout, mask.dense())
    near(out, plain.out, tolerance)
    if lse is not None:
        near(lse, plain.lse, tolerance)
    for actual, wanted in zip(torch.autograd.grad(out, (q, k, v), dout), plain.grads, strict=True):
        near(actual, wanted, tolerance)
    return plain


def near(actual: torch.Tensor, wanted: torch.Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(actual.detach().double(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", PATTERNS)
def test_the_reference_is_attention_by_its_definition(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(blockwise.MOST_SCORES, "cpu", 10_000)  # several blocks of rows, the last one shorter
    check(pattern_mask(name), return_lse=True)


def test_rows_and_keys_that_see_nothing(monkeypatch: pytest.MonkeyPatch):
    for rows in (20, 2):
        monkeypatch.setattr(blockwise, "FEWEST_ROWS", rows)
        monkeypatch.setitem(blockwise.MOST_SCORES, "cpu", 0)
        plain = check(EMPTY_ROWS, return_lse=True)
    assert plain.lse.isinf().any() and (plain.out[0] == 0).all()
    q, k, v, _ = inputs(EMPTY_ROWS)
    out, lse = longca.attention(q, k, v, EMPTY_ROWS, return_lse=True)
    (out.sum() + lse.exp().sum()).backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, v))
    assert (q.grad[:3] == 0).all() and (k.grad[20:] == 0).all()  # type: ignore[index]


def test_gradients_by_the_lse_too():
    mask = Mask.from_windows(6, (2, 0), (-1, 1))
    q, k, v, _ = inputs(mask, 2, 2, 2, torch.float64)
    assert torch.autograd.gradcheck(
        lambda q, k, v: longca.attention(q, k, v, mask, return_lse=True, scale=0.7), (q, k, v)
    )
    assert torch.autograd.gradcheck(
        lambda q, k, v: longca.attention(q, k, v, mask, return_lse=True)[1], (q, k, v)
    )


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 2e-2), (torch.float16, 2e-3)])
def test_half_precision_is_rounded_once(dtype: torch.dtype, tolerance: float):
    mask = pattern_mask("causal_document")
    q, k, v, dout = inputs(mask, dtype=dtype)
    out, lse = longca.attention(q, k, v, mask, return_lse=True)
    plain = plain_attention(q, k, v, dout, mask.dense())
    assert out.dtype == dtype and lse.dtype == torch.float32
    near(out, plain.out, tolerance)
    near(lse, plain.lse)


@pytest.mark.parametrize("kernel", ["naive", "sdpa", "reference"])
@pytest.mark.parametrize(
    "mask", [pattern_mask("prefix_lm_document"), pattern_mask("block_sparse_uniform"), EMPTY_ROWS], ids=str
)
def test_a_kernel_that_is_asked_for(kernel: str, mask: Mask):
    check(mask, kernel=kernel, return_lse=kernel != "sdpa", deterministic=False)


def test_a_scale_that_a_kernel_can_have_exactly():
    mask = build_mask("causal", seqlen=12)
    q, k, v, _ = inputs(mask, head_dim=16)
    torch.testing.assert_close(
        longca.attention(q, k, v, mask, scale=0.5, kernel="naive"), longca.attention(q, k, v, mask, scale=0.5)
    )
    with pytest.raises(
        UserError, match=r"Kernel 'naive' cannot scale by 0.3: .* rounded\. Leave `kernel` out"
    ):
        longca.attention(q, k, v, mask, scale=0.3, kernel="naive")


def test_a_loop_prepares_once(monkeypatch: pytest.MonkeyPatch):
    naive = type(Registry("kernel").load("naive"))
    prepared = []
    prepare = naive.prepare
    monkeypatch.setattr(
        naive, "prepare", lambda self, problem: prepared.append(problem) or prepare(self, problem)
    )
    mask = pattern_mask("causal")
    for _ in range(3):
        check(mask, kernel="naive")
    assert len(prepared) == 1
    q, k, v, _ = inputs(mask)
    with torch.no_grad():
        longca.attention(q, k, v, mask, kernel="naive")
    longca.attention(q.double().float(), k, v, pattern_mask("causal"), kernel="naive")
    assert [problem.needs_backward for problem in prepared] == [True, False, True]


def test_a_result_that_was_written_to_has_no_gradients():
    mask = pattern_mask("causal")
    q, k, v, dout = inputs(mask)
    out = longca.attention(q, k, v, mask, kernel="naive")
    with torch.no_grad():
        out.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward(dout)


@pytest.mark.parametrize("kernel", [None, "naive"])
def test_a_batch_has_the_mask_of_each_entry(kernel: str | None):
    mask = Mask.from_documents([3, 5])
    flat = inputs(Mask.from_documents([3, 5, 3, 5]))
    q, k, v, dout = (x.detach().unflatten(0, (2, 8)).requires_grad_() for x in flat)
    out, lse = longca.attention(q, k, v, mask, return_lse=True, kernel=kernel)
    whole, whole_lse = longca.attention(
        flat[0], flat[1], flat[2], Mask.from_documents([3, 5, 3, 5]), return_lse=True, kernel=kernel
    )
    torch.testing.assert_close(out.flatten(0, 1), whole)
    torch.testing.assert_close(lse.flatten(0, 1), whole_lse)
    grads = torch.autograd.grad(out, (q, k, v), dout)
    for actual, wanted in zip(grads, torch.autograd.grad(whole, flat[:3], flat[3]), strict=True):
        torch.testing.assert_close(actual.flatten(0, 1), wanted)


def test_memory_is_bounded_and_unseen_keys_are_left_alone():
    mask = build_mask("causal_sliding_window", seqlen="8K", window=255)
    blocks = list(blockwise._blocks(mask, torch.empty(mask.seqlen_q, 4, 0)))
    assert sum(block.hidden.shape[1] for block in blocks) == mask.seqlen_q
    assert max(4 * block.hidden.numel() for block in blocks) <= blockwise.MOST_SCORES["cpu"]
    assert sum(block.hidden.numel() for block in blocks) < mask.seqlen_q * 2 * 256


CAUSAL = build_mask("causal", seqlen=8)


def tensors(
    q: tuple[int, ...] = (8, 4, 16), k: tuple[int, ...] = (8, 2, 16), v: tuple[int, ...] = (), **options: Any
) -> Any:
    return torch.zeros(q, **options), torch.zeros(k, **options), torch.zeros(v or k, **options)


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ((*tensors()[:2], [1.0], CAUSAL), {}, "v must be a tensor, and it is list"),
        ((*tensors((8, 16), (8, 16)), CAUSAL), {}, r"q must be \(tokens, heads, D\)"),
        ((*tensors((1, 8, 4, 16)), CAUSAL), {}, r"k must be .* like q, and it is \(8, 2, 16\)"),
        ((*tensors(), "causal"), {}, "must be a longca.Mask, and it is str. Make one with longca.build_mask"),
        ((*tensors(dtype=torch.int32), CAUSAL), {}, "one dtype of bf16"),
        ((tensors()[0].double(), *tensors()[1:], CAUSAL), {}, "they are torch.float64, torch.float32"),
        (
            (tensors()[0].to("meta"), *tensors()[1:], CAUSAL),
            {},
            "on one device; they are on meta, cpu and cpu. Move",
        ),
        ((*tensors(v=(8, 2, 8)), CAUSAL), {}, "k and v must be of one shape"),
        ((*tensors(k=(8, 2, 8)), CAUSAL), {}, "and of q's batch and head dim"),
        ((*tensors((2, 8, 4, 16), (3, 8, 2, 16)), CAUSAL), {}, "of q's batch"),
        ((*tensors((0, 8, 4, 16), (0, 8, 2, 16)), CAUSAL), {}, "the batch is empty"),
        ((*tensors(k=(8, 3, 16)), CAUSAL), {}, "4 query heads cannot be shared evenly among 3 KV heads"),
        (
            (*tensors((9, 4, 16)), CAUSAL),
            {},
            "The mask is over 8 queries × 8 keys, and q and k have 9 and 8 tokens. Build a mask",
        ),
        (
            (*tensors((2, 4, 8, 16), (2, 4, 8, 16)), CAUSAL),
            {},
            r"4 and 4 tokens\. Give .*\(batch, tokens, heads, D\): x.transpose\(-2, -3\)",
        ),
        (
            (*tensors((4, 8, 16), (2, 8, 16)), CAUSAL),
            {},
            r"4 and 2 tokens\. Give .*: x.transpose\(-2, -3\) makes it",
        ),
        ((*tensors((8, 4, 0), (8, 2, 0)), CAUSAL), {}, "the head dim is empty"),
        (
            (*tensors((2, 4, 2, 16), (2, 4, 2, 16)), CAUSAL),
            {},
            r"4 and 4 tokens\. Give x.flatten\(0, 1\) where",
        ),
        (
            (*tensors(), Mask.from_windows(8, *[(1, 0)] * 3)),
            {},
            "2 KV heads cannot share a mask of 3 head groups evenly",
        ),
        ((*tensors(), CAUSAL), {"scale": -1.0}, "scale must be positive and finite, and it is -1.0"),
        ((*tensors(), CAUSAL), {"scale": "x"}, "scale must be positive and finite, and it is x"),
        (
            (*tensors(), CAUSAL),
            {"kernel": 3},
            "Argument 'kernel' is 3. Give a name; `longca list kernels` shows all",
        ),
        ((*tensors(), CAUSAL), {"kernel": ["naive"]}, "Argument 'kernel' is .'naive'.. Give a name"),
        (
            (*tensors(), CAUSAL),
            {"deterministic": "false"},
            "Argument 'deterministic' is 'false'. Give True or False",
        ),
        ((*tensors(), CAUSAL), {"return_lse": 2}, "Argument 'return_lse' is 2. Give True or False"),
        ((*tensors(), CAUSAL), {"kernel": "naiv"}, "Unknown kernel 'naiv': did you mean 'naive'"),
        (
            (*tensors(), CAUSAL),
            {"kernel": "fa3"},
            "Kernel 'fa3' cannot do this call: it runs on NVIDIA GPUs only|not installed",
        ),
        (
            (*tensors(), CAUSAL),
            {"kernel": "matmul"},
            "Kernel 'matmul' cannot do this call: it serves measurements alone",
        ),
        ((*tensors(), CAUSAL), {"kernel": "as_released_naive"}, "serves measurements alone"),
        (
            (*tensors(), CAUSAL),
            {"kernel": "sdpa", "return_lse": True},
            "Kernel 'sdpa' cannot do this call: it returns no LSE",
        ),
        (
            (*tensors(requires_grad=True), CAUSAL),
            {"kernel": "sdpa"},
            "Kernel 'sdpa' .*: give deterministic=False to allow that",
        ),
        ((*tensors(dtype=torch.float64), CAUSAL), {"kernel": "naive"}, "Kernel 'naive' takes no float64"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(given: tuple[Any, ...], options: dict[str, Any], message: str):
    with pytest.raises(UserError, match=message) as error:
        longca.attention(*given, **options)
    assert "\n" not in str(error.value) and len(str(error.value)) < 250


@pytest.mark.parametrize(("needs_backward", "found"), [(False, True), (True, True)])
def test_a_kernel_that_differs_in_its_gradients_alone_serves_calls_without_them(
    needs_backward: bool, found: bool
):
    class OfGradients(Kernel):
        name = "of_gradients"
        family = "dense"
        deterministic = False
        returns_lse = True

        def available(self, device_type):
            return None

        def supports(self, call, traits, device_type):
            return "forward it is another" if call.direction == "fwd" else None

    problem = Problem(CAUSAL, 2, 1, 16, torch.float32, torch.device("cpu"), needs_backward)
    assert problem_for(OfGradients(), problem, return_lse=True, deterministic=False).needs_backward is found
    if needs_backward:
        with pytest.raises(UserError, match="cannot do this call: the order in which it sums"):
            problem_for(OfGradients(), problem, return_lse=True, deterministic=True)
