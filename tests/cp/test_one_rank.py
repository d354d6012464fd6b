"""A context of one rank: what its user may write to, second derivatives, and empty tensors."""

import pytest
import torch

from longca.core.errors import UserError
from longca.cp.context import context_parallel
from tests.helpers.cp.public_calls import DOCUMENTS, HEADS, T, inputs


def test_positions_are_the_users_own():
    cp = context_parallel(DOCUMENTS, **HEADS)
    x = torch.arange(T)
    wanted = cp.shard(x)
    cp.positions.remainder_(40)  # as for rotary embeddings of documents
    assert torch.equal(cp.shard(x), wanted)
    assert torch.equal(cp.with_mask(DOCUMENTS).positions, wanted)
    cp.close()


def test_a_derivative_of_gradients_is_refused_and_that_of_unshard_is_right():
    cp = context_parallel(DOCUMENTS, **HEADS)
    q, k, v, _ = (x.requires_grad_() for x in inputs())
    out = cp.attention(q, k, v)
    with pytest.raises(UserError, match="Attention over ranks is differentiable once"):
        torch.autograd.grad(out.sum(), q, create_graph=True)
    x = torch.randn(T, 2, requires_grad=True)
    [first] = torch.autograd.grad(cp.unshard(x).pow(3).sum(), x, create_graph=True)
    [second] = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, 6 * x.detach())
    cp.close()


def test_nothing_to_gather_and_nothing_to_attend():
    cp = context_parallel(DOCUMENTS, **HEADS)
    assert cp.unshard(torch.zeros(T, 0)).shape == (T, 0)
    nothing = torch.zeros(0, T, 4, 8)
    with pytest.raises(UserError, match="Argument 'q' of attention is an empty batch"):
        cp.attention(nothing, nothing, nothing)
    cp.close()


@pytest.mark.parametrize(
    ("strategy", "kernel", "is_called"),
    [
        ("ring_allgather+naive", "auto", "ring_allgather"),
        ("usp[heads=1]+naive", "naive", "usp(heads=1)"),
        (("usp+naive", {"heads": 1}), "auto", "usp(heads=1)"),
    ],
)
def test_a_way_is_called_as_advice_names_it(strategy: object, kernel: str, is_called: str):
    cp = context_parallel(DOCUMENTS, strategy=strategy, kernel=kernel, **HEADS)
    assert cp.strategy == is_called
    cp.close()
