"""`longca.attention` on a GPU: right whatever it chooses, quick from the second call on, and by each kernel
that is asked for."""

import pytest
import torch

import longca
from longca.core.plugin import Registry
from longca.dispatch.choice import REFERENCE, cannot, choose
from longca.kernels.contract import Problem
from longca.masks import Mask
from tests.helpers.gpu.device import GPU, needs_gpu
from tests.helpers.kernels.masks_for_tests import PATTERNS
from tests.helpers.kernels.plain_attention import plain_attention

pytestmark = needs_gpu
SEQLEN = 1024
HEADS = (8, 2)
HEAD_DIM = 128
FEW = {
    "block_sparse_uniform": {"block": 64, "density": 0.3},
    "block_sparse_variable": {"mean_block": 64, "density": 0.3},
}


def mask_of(name: str) -> Mask:
    documents = [300, 1, 467, 256] if Registry("mask").load(name).uses_documents else None
    return longca.build_mask(
        name, seqlen=SEQLEN, num_kv_heads=HEADS[1], documents=documents, **FEW.get(name, {})
    )


def inputs(dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
    generator = torch.Generator(GPU).manual_seed(3)
    tensors = [
        torch.randn(SEQLEN, heads, HEAD_DIM, generator=generator, device=GPU).to(dtype)
        for heads in (*HEADS, HEADS[1], HEADS[0])
    ]
    return [*(x.requires_grad_() for x in tensors[:3]), tensors[3]]


def relative(actual: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((actual.detach().double().cpu() - wanted).norm() / wanted.norm())


def check(mask: Mask, **options) -> None:
    q, k, v, dout = inputs()
    plain = plain_attention(q, k, v, dout, mask.dense())
    out = longca.attention(q, k, v, mask, **options)
    assert relative(out, plain.out) < 1e-2
    for actual, wanted in zip(torch.autograd.grad(out, (q, k, v), dout), plain.grads, strict=True):
        assert relative(actual, wanted) < 2e-2
    with torch.no_grad():
        assert relative(longca.attention(q, k, v, mask, **options), plain.out) < 1e-2


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("name", PATTERNS)
def test_what_is_chosen_is_right(name: str, deterministic: bool) -> None:
    check(mask_of(name), deterministic=deterministic)


@pytest.mark.parametrize("kernel", Registry("kernel").names())
def test_a_kernel_that_is_asked_for_is_right(kernel: str) -> None:
    mask = mask_of("causal")
    plugin = Registry("kernel").load(kernel)
    problem = Problem(mask, *HEADS, HEAD_DIM, torch.bfloat16, GPU, needs_backward=True)
    if (reason := cannot(plugin, problem, False, False)) is not None:
        pytest.skip(reason)
    check(mask, kernel=kernel, deterministic=False)


def test_gradients_repeat_bit_for_bit_and_float32_has_the_reference() -> None:
    mask = mask_of("causal_document")
    q, k, v, dout = inputs()
    first, other = (torch.autograd.grad(longca.attention(q, k, v, mask), (q, k, v), dout) for _ in range(2))
    assert all(torch.equal(*pair) for pair in zip(first, other, strict=True))
    wide = Problem(mask, *HEADS, HEAD_DIM, torch.float32, GPU, needs_backward=False)
    assert choose(wide, False, True, True) == REFERENCE
    q, k, v, dout = inputs(torch.float32)
    assert relative(longca.attention(q, k, v, mask), plain_attention(q, k, v, dout, mask.dense()).out) < 1e-3


@pytest.mark.parametrize("kernel", [None, "sdpa", "flex", "fa3", "cudnn"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_autocast_and_compile_change_nothing(kernel: str | None, dtype: torch.dtype) -> None:
    mask = mask_of("causal_document")
    results = []
    if kernel is not None:
        problem = Problem(mask, *HEADS, HEAD_DIM, dtype, GPU, needs_backward=True)
        if (reason := cannot(Registry("kernel").load(kernel), problem, False, False)) is not None:
            pytest.skip(reason)

    def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return longca.attention(q * 2, k, v, mask, kernel=kernel, deterministic=kernel is None) * 2

    for call, enabled in (
        (attended, False),
        (attended, True),
        (torch.compile(attended), False),
        (torch.compile(attended), True),
    ):
        q, k, v, dout = inputs(dtype)
        with torch.autocast("cuda", torch.float16, enabled=enabled):
            out = call(q, k, v)
            results.append([out, *torch.autograd.grad(out, (q, k, v), dout)])
    wanted = [x.detach().double().cpu() for x in results[0]]
    tolerance = 1e-2 if dtype == torch.bfloat16 else 1e-5
    for result in results[1:]:  # kernels that were asked for may add in another order
        assert all(
            x.dtype == dtype and relative(x, y) < tolerance for x, y in zip(result, wanted, strict=True)
        )


def test_tensors_of_sdpas_layout() -> None:
    mask = mask_of("causal")
    q, k, v = (
        torch.randn(2, heads, SEQLEN, HEAD_DIM, device=GPU, dtype=torch.bfloat16)
        for heads in (HEADS[0], *[HEADS[1]] * 2)
    )
    out = longca.attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask).transpose(1, 2)
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    assert relative(out, wanted.double().cpu()) < 1e-2
