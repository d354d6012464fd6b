"""Checks of the tensors that a rank gives, before anything is sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from longca.core import UserError
from longca.cp.api.request import DTYPES

if TYPE_CHECKING:
    import torch

    from longca.cp.api.request import CpRequest


def row_text(x: Any, dim: Any) -> str:
    """The properties of a tensor for `unshard` that ranks must share: dtype and shape of a token."""
    import torch

    if not isinstance(x, torch.Tensor) or not isinstance(dim, int) or not -x.dim() <= dim < x.dim():
        return ""
    return f"{x.dtype} of shape {' × '.join(map(str, x.movedim(dim, 0).shape[1:])) or '()'} a token"


def check_tokens(call: str, x: Any, dim: Any, num_tokens: int, whose: str, todo: str) -> None:
    """Raise UserError if that dimension of `x` has another number of tokens.

    Args:
        call: the method that received `x`.
        whose: description of the tokens.
        todo: the remedy.
    """
    import torch

    if not isinstance(x, torch.Tensor):
        raise UserError(f"Argument 'x' of {call} is of type {type(x).__name__}", todo="Give a tensor")
    if not isinstance(dim, int):
        raise UserError(
            f"Argument 'dim' of {call} is {dim!r}", todo="Give the number of the dimension of tokens"
        )
    if not -x.dim() <= dim < x.dim() or x.shape[dim] != num_tokens:
        raise UserError(
            f"Argument 'x' of {call} is {shape_text(x)}",
            why=f"dimension {dim} must have the {num_tokens} tokens {whose}",
            todo=f"{todo}, and its dimension of tokens as dim=",
        )


def shape_text(x: Any) -> str:
    return f"of shape {' × '.join(map(str, x.shape)) or '()'}"


def check_tensors(
    request: CpRequest, num_tokens: int, seqlen: int, device: torch.device, tensors: Sequence[torch.Tensor]
) -> None:
    """Raise UserError if q, k and v are not what was planned.

    Args:
        num_tokens: of this rank.
        seqlen: tokens over all ranks.
        device: of this rank.
        tensors: q, k and v.
    """
    import torch

    q, k, v = tensors
    lead = tuple(q.shape[:1]) if isinstance(q, torch.Tensor) and q.dim() == 4 else ()
    for name, x, num_heads in (
        ("q", q, request.num_q_heads),
        ("k", k, request.num_kv_heads),
        ("v", v, request.num_kv_heads),
    ):
        if not isinstance(x, torch.Tensor):
            raise UserError(
                f"Argument '{name}' of attention is of type {type(x).__name__}", todo="Give a tensor"
            )
        wanted = *lead, num_tokens, num_heads, request.head_dim
        if x.dim() == len(wanted) and x.shape[-3] == seqlen != num_tokens:
            raise UserError(
                f"Argument '{name}' of attention has all {seqlen} tokens",
                why=f"this rank holds {num_tokens} of them",
                todo="Give the tokens of cp.shard",
            )
        if tuple(x.shape) != wanted:
            raise UserError(
                f"Argument '{name}' of attention is {shape_text(x)}",
                why=f"tokens of this rank × heads × head dim are {' × '.join(map(str, wanted))}",
                todo="Give that shape, or the heads of the model to context_parallel",
            )
        if x.dtype != request.dtype:
            can_be_planned = str(x.dtype).removeprefix("torch.") in DTYPES
            raise UserError(
                f"Argument '{name}' of attention is {x.dtype}",
                why=f"the plan is for {request.dtype}",
                todo=f"Convert it with .to({request.dtype})"
                + (f", or give dtype={x.dtype} to context_parallel" if can_be_planned else ""),
            )
        if x.device != device:
            raise UserError(
                f"Argument '{name}' of attention is on {x.device}",
                why=f"this rank is on {device}",
                todo="Move it there",
            )
    if not request.needs_backward and torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        raise UserError(
            "Attention is asked for gradients",
            why="it was planned with backward=False",
            todo="Give backward=True to context_parallel, or call it under torch.no_grad()",
        )
