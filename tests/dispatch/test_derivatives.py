"""Second derivatives of `longca.attention` and gradients by its scale are errors, never missing terms."""

import pytest
import torch

import longca
from longca.core.errors import UserError
from longca.masks import Mask
from tests.dispatch.test_call import inputs, near
from tests.helpers.kernels.plain_attention import plain_attention

MASK = Mask.from_documents([12, 8])


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("kernel", ["reference", "naive"])
def test_a_loss_of_a_gradient_and_of_the_output_is_refused(kernel: str, batch: bool, power: int):
    leaves = inputs(MASK)[:3]
    if batch:
        leaves = [x.detach().unsqueeze(0).requires_grad_() for x in leaves]
    out = longca.attention(*leaves, MASK, kernel=kernel)
    [dq] = torch.autograd.grad(out.pow(power).sum(), leaves[0], create_graph=True)
    with pytest.raises(UserError, match="is differentiable once: a gradient of it is differentiated again"):
        torch.autograd.grad(out.sum() + dq.square().sum(), leaves[0])


@pytest.mark.parametrize("kernel", ["reference", "naive"])
def test_a_graph_that_is_made_and_not_used_changes_nothing(kernel: str):
    q, k, v, dout = inputs(MASK)
    out = longca.attention(q, k, v, MASK, kernel=kernel)
    grads = torch.autograd.grad(out, (q, k, v), dout, create_graph=True)
    for actual, wanted in zip(grads, plain_attention(q, k, v, dout, MASK.dense()).grads, strict=True):
        near(actual, wanted)


def test_a_scale_that_would_be_learned_is_refused():
    q, k, v, _ = inputs(MASK)
    scale = torch.tensor(0.3, requires_grad=True)
    with pytest.raises(UserError, match="scale requires a gradient, and attention has none by it"):
        longca.attention(q, k, v, MASK, scale=scale)  # type: ignore[arg-type]
    with torch.no_grad():
        same = longca.attention(q, k, v, MASK, scale=0.3)
        torch.testing.assert_close(longca.attention(q, k, v, MASK, scale=scale), same)  # type: ignore[arg-type]
