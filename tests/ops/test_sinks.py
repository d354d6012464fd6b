"""Sinks that join the result of a call, and their gradient."""

import torch

from longca.ops import join_sinks, sinks


def test_a_head_without_a_sink_keeps_its_bits_and_a_large_sink_leaves_nothing():
    out = torch.randn(5, 3, 4)
    lse = torch.randn(5, 3)
    joined, joined_lse = join_sinks(out, lse, torch.tensor([-torch.inf, 1e30, torch.inf]))
    assert torch.equal(joined[:, 0], out[:, 0]) and torch.equal(joined_lse[:, 0], lse[:, 0])
    assert (joined[:, 1:] == 0).all() and (joined_lse[:, 1] == 1e30).all()
    grad = sinks.sinks_gradient(joined, joined_lse, out, lse, torch.tensor([-torch.inf, 1e30, torch.inf]))
    torch.testing.assert_close(grad, torch.stack([torch.zeros(()), lse[:, 1].sum(), lse[:, 2].sum()]))
