"""Sums over ranks: of the loss in the forward pass, and of the gradients of parameters after a backward
pass."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Variable

if TYPE_CHECKING:
    import torch.distributed as dist

MOST_ELEMENTS = 1 << 26  # of gradients that travel in one message


def summed(loss: Tensor, group: dist.ProcessGroup | None, factor: float) -> Tensor:
    """The sum of a loss over ranks. Each rank's own part gets the gradient of the sum times `factor`."""
    return loss if group is None else _Summed.apply(loss, group, factor)


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor, group: dist.ProcessGroup, factor: float) -> Tensor:
        import torch.distributed as dist

        ctx.factor = factor
        total = loss.detach().clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return grad * ctx.factor, None, None


def leaves_of(x: Tensor) -> list[Tensor]:
    """The tensors that a backward from `x` gives a gradient to, in an order that the graph alone decides."""
    if x.grad_fn is None:
        return [x] if x.requires_grad else []
    leaves: list[Tensor] = []
    waiting: list[Any] = [x.grad_fn]
    known = {x.grad_fn}
    while waiting:
        node = waiting.pop()
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        for following, _ in node.next_functions:
            if following is not None and following not in known:
                known.add(following)
                waiting.append(following)
    return leaves


class GradientSum:
    """Sums what one backward adds to the gradients of parameters over ranks, once, when that backward ends.

    A sum at the end, and in the order of the parameters, does not depend on which of them a rank's tokens
    have used.
    """

    def __init__(self, parameters: Sequence[Tensor], group: dist.ProcessGroup) -> None:
        self._parameters = parameters
        self._group = group
        self._before: list[Tensor | None] | None = None  # gradients of earlier backward passes, during one

    def begin(self) -> None:
        """Called when a backward reaches an output of the model; the first call of a backward counts."""
        if self._before is None:
            self._before = [parameter.grad for parameter in self._parameters]
            for parameter in self._parameters:
                parameter.grad = None
            Variable._execution_engine.queue_callback(self._end)

    def _end(self) -> None:
        import torch.distributed as dist

        assert self._before is not None
        before = self._before
        self._before = None
        device = self._parameters[0].device
        used = torch.tensor([parameter.grad is not None for parameter in self._parameters], device=device)
        used = used.to(torch.int32)
        dist.all_reduce(used, group=self._group)
        with torch.no_grad():
            for bucket in _buckets(
                [p for p, count in zip(self._parameters, used.tolist(), strict=True) if count]
            ):
                self._sum(bucket)
            for parameter, earlier in zip(self._parameters, before, strict=True):
                if earlier is not None:
                    parameter.grad = earlier if parameter.grad is None else earlier.add_(parameter.grad)

    def _sum(self, parameters: Sequence[Tensor]) -> None:
        import torch.distributed as dist

        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        flat = torch.cat([grad.reshape(-1) for grad in grads])
        dist.all_reduce(flat, group=self._group)
        parts = flat.split([grad.numel() for grad in grads])
        for parameter, grad, part in zip(parameters, grads, parts, strict=True):
            parameter.grad = grad.copy_(part.view_as(grad))


def _buckets(parameters: Sequence[Tensor]) -> list[list[Tensor]]:
    """Parameters of one dtype and device each, in order, of at most `MOST_ELEMENTS` elements or one
    parameter."""
    buckets: list[list[Tensor]] = []
    for _, alike in groupby(parameters, key=lambda p: (p.dtype, p.device)):
        size = MOST_ELEMENTS
        for parameter in alike:
            if size + parameter.numel() > MOST_ELEMENTS:
                buckets.append([])
                size = 0
            buckets[-1].append(parameter)
            size += parameter.numel()
    return buckets


def join_backward(output: Tensor, gradients: GradientSum) -> Tensor:
    """The same output; gradients of parameters are summed over ranks after a backward that begins at it."""
    return _Joined.apply(output, gradients)


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, output: Tensor, gradients: GradientSum) -> Tensor:
        ctx.gradients = gradients
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        ctx.gradients.begin()
        return grad, None
