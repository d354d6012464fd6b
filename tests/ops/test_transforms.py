"""Transforms and tracers of torch are refused in one line, forward and backward."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

import longca
from longca.core.errors import UserError
from longca.masks import Mask
from longca.ops.transforms import refuse_transforms

MASK = Mask.from_documents([3, 5])
X = torch.randn(8, 2, 4)


def attended(x: Tensor) -> Tensor:
    return longca.attention(x, X, X, MASK)


class Model(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return attended(x)


def forward_mode() -> Tensor:
    with forward_ad.dual_level():
        return attended(forward_ad.make_dual(X, X))


def fake() -> Tensor:
    with FakeTensorMode(allow_non_fake_inputs=True):
        return attended(torch.empty(8, 2, 4))


def batched_gradients(kernel: str) -> Any:
    x = X.clone().requires_grad_()
    out = longca.attention(x, X, X, MASK, kernel=kernel)
    return torch.autograd.grad(out, x, torch.ones(3, 8, 2, 4), is_grads_batched=True)


FUNC = "no rule for the transforms of torch.func"
TRACED = "cannot be traced by torch.export"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: torch.vmap(attended)(torch.stack([X, X])), FUNC),
        (lambda: torch.func.grad(lambda x: attended(x).sum())(X), FUNC),
        (lambda: torch.func.jvp(attended, (X,), (X,)), FUNC),
        (lambda: torch.func.jacrev(attended)(X), FUNC),
        (lambda: torch.func.functionalize(attended)(X), FUNC),
        (lambda: batched_gradients("reference"), FUNC),
        (lambda: batched_gradients("naive"), FUNC),
        (lambda: torch.autograd.functional.jacobian(attended, X, vectorize=True), FUNC),
        (forward_mode, "no forward-mode derivative"),
        (lambda: torch.export.export(Model(), (X,), strict=False), TRACED),
        (lambda: make_fx(attended)(X), TRACED),
        (fake, TRACED),
        (lambda: longca.attention(X.to("meta"), X.to("meta"), X.to("meta"), MASK), "on meta without numbers"),
    ],
)
def test_each_is_refused_in_one_line(call: Callable[[], Any], message: str):
    with pytest.raises(UserError, match=re.escape(message)) as error:
        call()
    assert "\n" not in str(error.value)


def test_plain_tensors_are_not():
    refuse_transforms(X, X.clone().requires_grad_(), None)
    with torch.inference_mode():
        refuse_transforms(X * 2)
