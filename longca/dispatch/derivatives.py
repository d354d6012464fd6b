"""The backward of autograd functions that are differentiable once."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from longca.core import UserError
from longca.ops import refuse_transforms

Backward = Callable[..., tuple[Any, ...]]


def differentiable_once(backward: Backward) -> Backward:
    """The backward of an autograd function, whose gradients raise UserError if they are differentiated.

    torch's `once_differentiable` does not connect such gradients with the saved inputs. A loss that depends
    on an input in another way as well would then get a derivative without their part, and no error.
    """

    @wraps(backward)
    def call(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Any, ...]:
        refuse_transforms(*grad_outputs)
        with torch.no_grad():
            grads = backward(ctx, *grad_outputs)
        if not torch.is_grad_enabled():  # as without create_graph=True
            return grads
        sources = [
            x for x in (*ctx.saved_tensors, *grad_outputs) if isinstance(x, Tensor) and x.requires_grad
        ]
        tensors = [x for x in grads if isinstance(x, Tensor)]
        if not sources or not tensors:
            return grads
        connected = iter(_Last.apply(len(tensors), *tensors, *sources))
        return tuple(next(connected) if isinstance(x, Tensor) else x for x in grads)

    return call


class _Last(torch.autograd.Function):
    """Gradients that depend on their sources by a function without a derivative."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(x.view_as(x) for x in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        raise UserError(
            "longca.attention is differentiable once",
            why="a gradient of it is differentiated again",
            todo="Detach that gradient, or compute this attention with torch's own operators",
        )
