"""Attention in plain torch. Replace `NewKernelPrepared.forward` with your own kernel.

Shapes: T tokens, H query heads, G KV heads, D head dim. `longca/kernels/contract.py` has every method.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.core import CallSpec
from longca.kernels import Forward, Kernel, Prepared, Problem

if TYPE_CHECKING:
    import torch

    from longca.masks import Traits


class NewKernel(Kernel):
    label = "New kernel"  # stands in figures
    family = "both"  # of the masks: dense, sparse (blocks) or both
    summary = "Scores, softmax and sum in plain torch"  # one line for `longca list kernels`
    url = "https://docs.pytorch.org/docs/stable/torch.html"  # documentation of the called function
    needs = ("torch",)  # required modules; without them the kernel is "unavailable"

    def supports(self, call: CallSpec, traits: Traits, device_type: str) -> str | None:
        """Returns None, or why the kernel does not support this call; users read the reason. Use traits of
        the mask, never its name."""
        if call.head_dim > 256:
            return "head dims up to 256"
        return None

    def prepare(self, problem: Problem) -> NewKernelPrepared:
        return NewKernelPrepared(problem)


class NewKernelPrepared(Prepared):
    """The kernel for one mask, shape, dtype and device. Only `forward` and `backward` are timed."""

    def __init__(self, problem: Problem) -> None:
        """Untimed: convert the mask to the kernel's format, plan, compile. `longca/lowering/` supports many
        formats."""
        super().__init__(problem)
        from longca.lowering import dense_mask  # heavy imports inside functions keep `longca list` fast

        visible = dense_mask(problem.mask, problem.device)  # bool, True is visible
        self.hidden = ~visible.view(problem.mask.num_groups, 1, *visible.shape[-2:])
        self.empty_rows = self.hidden.all(-1, keepdim=True)  # queries that see no key: their result is 0
        self.costs["metadata_bytes"] = visible.numel()

    def to_layout(self, x_THD: torch.Tensor) -> torch.Tensor:
        """Untimed: convert to the kernel's layout, here (mask groups, heads of one group, T, D)."""
        return x_THD.transpose(0, 1).unflatten(0, (self.problem.mask.num_groups, -1)).contiguous()

    def from_layout(self, x: torch.Tensor) -> torch.Tensor:
        """Untimed: convert back to T × heads × D."""
        return x.flatten(0, 1).transpose(0, 1)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Forward:
        """Timed. With `needs_backward`, `saved` must let `backward` run many times."""
        leaves = [x.detach().requires_grad_(self.problem.needs_backward) for x in (q, k, v)]
        num_copies = self.problem.num_q_heads // self.problem.num_kv_heads
        q, k, v = leaves[0], *(x.repeat_interleave(num_copies, 1) for x in leaves[1:])
        scores = (q @ k.mT).float() * self.problem.scale
        weights = scores.masked_fill(self.hidden, float("-inf")).softmax(-1).masked_fill(self.empty_rows, 0.0)
        out = weights.to(q.dtype) @ v
        # Forward(out, lse, …) if the kernel returns its log-sum-exp, (T, H) float32
        return Forward(out.detach(), saved=(out, leaves))

    def backward(
        self, forward: Forward, dout: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Timed: (dq, dk, dv) in the kernel's layout. Replace autograd with your own backward."""
        import torch

        out, leaves = forward.saved
        dq, dk, dv = torch.autograd.grad(out, leaves, dout, retain_graph=True)
        return dq, dk, dv
