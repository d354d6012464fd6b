"""NaN and infinity of one packed document stay in it, forward and backward."""

import math
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import longca
from longca.lowering.dense import all_finite, confined_product
from longca.masks import Mask

LENGTHS = [40, 24, 32]
HIT = slice(40, 64)
MASKS = {
    "causal": Mask.from_documents(LENGTHS, causal=True),
    "full": Mask.from_documents(LENGTHS, causal=False),
}
INPUTS = ("q", "k", "v", "dout")
VALUES = (math.nan, math.inf, -math.inf)


def never(*_: Tensor) -> bool:
    return False


def results(mask: Mask, kernel: str, tensors: list[Tensor]) -> dict[str, Tensor]:
    leaves = [x.clone().requires_grad_() for x in tensors[:3]]
    out, lse = longca.attention(*leaves, mask, kernel=kernel, return_lse=True)
    out.backward(tensors[3])
    return {"out": out.detach(), "lse": lse.detach()} | {
        f"d{name}": x.grad for name, x in zip("qkv", leaves, strict=True)
    }


@pytest.mark.parametrize("kernel", ["reference", "naive"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_stays_in_its_document(kernel: str, mask: str, dtype: torch.dtype):
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(sum(LENGTHS), heads, 16, generator=generator).to(dtype) for heads in (4, 2, 2, 4)]
    sound = results(MASKS[mask], kernel, tensors)
    # the product under a mask may add in another order than the plain one
    with patch("longca.lowering.all_finite", never), patch("longca.dispatch.blockwise.all_finite", never):
        confined = results(MASKS[mask], kernel, tensors)
    for name, x in confined.items():
        assert_close(x, sound[name])
    others = torch.ones(sum(LENGTHS), dtype=torch.bool)
    others[HIT] = False
    for hit in range(4):
        for value in VALUES:
            bad = [x.clone() for x in tensors]
            bad[hit][45, 0, 3] = value
            bad[hit][50, 1] = value
            actual = results(MASKS[mask], kernel, bad)
            for name, x in actual.items():
                assert torch.equal(x[others], confined[name][others]), (INPUTS[hit], value, name)
            changed = {name for name, x in actual.items() if not torch.isfinite(x[HIT]).all()}
            # nor is it lost in its own document: dv does not depend on v, and dout reaches gradients alone
            assert changed >= ({"out", "dq", "dk"} if hit != 3 else {"dq", "dk", "dv"}), (INPUTS[hit], value)


def test_products_are_those_of_the_visible_pairs():
    """Every kind of value, weight and visibility against the sum in Python's own numbers."""
    generator = torch.Generator().manual_seed(1)
    values = torch.tensor([math.nan, math.inf, -math.inf, 0.0, 1.0, -2.0])
    for _ in range(50):
        weights, x = (values[torch.randint(6, shape, generator=generator)] for shape in ((5, 4), (4, 3)))
        weights = torch.where(torch.isfinite(weights), weights, 0.5)
        visible = torch.rand(5, 4, generator=generator) < 0.5
        weights[~visible] = math.nan
        expected = torch.tensor([
            [sum((float(weights[i, j]) * float(x[j, d]) for j in range(4) if visible[i, j]), 0.0) for d in range(3)]  # noqa: E501
            for i in range(5)
        ])  # fmt: skip
        torch.testing.assert_close(confined_product(weights, visible, x), expected, equal_nan=True)


def test_an_overflowing_sum_takes_the_longer_way_only():
    assert all_finite(torch.full((4,), 6e4, dtype=torch.float16)) and not all_finite(torch.full((4,), 3e38))
    assert not all_finite(torch.tensor([math.inf, -math.inf])) and not all_finite(
        torch.ones(2), torch.tensor([math.nan])
    )
