"""Prepared strategies of other projects: one differentiable function of a rank's shards that sends its own
messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.cp.contract import PreparedStrategy
from longca.kernels import Forward

if TYPE_CHECKING:
    import torch


class AutogradPrepared(PreparedStrategy):
    """A prepared strategy whose backward is autograd's."""

    counts_bytes = False

    def call(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """The output, L × H × D, with a graph to q, k and v."""
        raise NotImplementedError

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Forward:
        import torch

        if not self.problem.needs_backward:
            with torch.no_grad():
                return Forward(self.call(q, k, v))
        leaves = tuple(x.detach().requires_grad_() for x in (q, k, v))
        out = self.call(*leaves)
        return Forward(out.detach(), saved=(out, leaves))

    def backward(
        self, forward: Forward, dout: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        import torch

        out, leaves = forward.saved
        return torch.autograd.grad(out, leaves, dout, retain_graph=True)
