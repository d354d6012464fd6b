"""A prepared strategy as a differentiable function: autograd, activation checkpointing and autocast see one
operation.

What backward needs is saved by `save_for_backward`, so that hooks of saved tensors hold for it: activation
checkpointing drops it after forward and has forward make it again.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from longca.masks.mask import breaks_graph

if TYPE_CHECKING:
    import torch

    from longca.cp.api.agreement import Agreement
    from longca.cp.comm.backend import Comm
    from longca.cp.contract import PreparedStrategy


class ForwardCall(NamedTuple):
    """A sequence of a forward call, the same on all ranks."""

    number: int
    """of the call, from 1"""
    series: str
    """the text of all calls that are like it"""
    sequence: int | None
    """number in its batch, from 0; None without a batch"""

    @property
    def of_backward(self) -> str:
        """The arguments of its backward call, likewise."""
        sequence = "" if self.sequence is None else f", sequence {self.sequence}"
        return f"gradients of forward number {self.number}{sequence}"


def attend(
    prepared: PreparedStrategy,
    q_LHD: torch.Tensor,
    k_LGD: torch.Tensor,
    v_LGD: torch.Tensor,
    agreement: Agreement,
    call: ForwardCall,
) -> torch.Tensor:
    """The output of this rank's queries, L × H × D.

    Args:
        agreement: has begun the forward call; backward calls are compared by it as well.
        call: the forward call, by which its backward call is named.
    """
    return _functions()[0].apply(q_LHD, k_LGD, v_LGD, prepared, agreement, call)


def gather_tokens(
    comm: Comm, shard: torch.Tensor, num_rows: list[int], inverse: torch.Tensor
) -> torch.Tensor:
    """The rows of all ranks in the order of the sequence, on every rank. Each rank's gradient is that of its
    own rows.

    Args:
        shard: rows of this rank.
        num_rows: of each rank.
        inverse: the place of each token in the rows of all ranks, one rank after another.
    """
    return _functions()[1].apply(shard, comm, num_rows, inverse)


@cache
def _functions() -> tuple[Any, Any]:
    import torch
    from torch.autograd.function import once_differentiable

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(
            ctx: Any,
            q: torch.Tensor,
            k: torch.Tensor,
            v: torch.Tensor,
            prepared: PreparedStrategy,
            agreement: Agreement,
            call: ForwardCall,
        ) -> torch.Tensor:
            # some kernels keep a graph of their own
            with agreement.messages(), torch.enable_grad(), torch.autocast(q.device.type, enabled=False):
                result = prepared.forward(*(x.detach().contiguous() for x in (q, k, v)))
            if any(ctx.needs_input_grad):
                kept: list[torch.Tensor] = []
                ctx.prepared, ctx.agreement, ctx.call = prepared, agreement, call
                ctx.result = _map(result, torch.Tensor, lambda x: _put_away(x, kept))
                ctx.save_for_backward(*kept)
            return result.out

        @staticmethod
        @once_differentiable
        @breaks_graph
        def backward(ctx: Any, *grad_outputs: Any) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
            kept = ctx.saved_tensors  # where they were dropped, forward runs again here, a call of its own
            result = _map(ctx.result, _Place, lambda place: kept[place.number])
            ctx.agreement.begin("backward", ctx.call.of_backward, series=ctx.call.series)
            with ctx.agreement.messages(), torch.autocast(grad_outputs[0].device.type, enabled=False):
                grads = ctx.prepared.backward(result, grad_outputs[0].contiguous())
            ctx.agreement.end()
            return *grads, None, None, None

    class TokenGather(torch.autograd.Function):
        @staticmethod
        def forward(
            ctx: Any, shard: torch.Tensor, comm: Comm, num_rows: list[int], inverse: torch.Tensor
        ) -> torch.Tensor:
            row = shard.shape[1:].numel()
            start = sum(num_rows[: comm.rank])
            ctx.own = torch.empty_like(inverse)
            ctx.own[inverse] = torch.arange(len(inverse), device=inverse.device)
            ctx.own = ctx.own[start : start + num_rows[comm.rank]]
            sent = shard.detach().reshape(-1).repeat(comm.world)
            received = comm.all_to_all(sent, [shard.numel()] * comm.world, [rows * row for rows in num_rows])
            return received.view(-1, *shard.shape[1:]).index_select(0, inverse)

        @staticmethod
        @once_differentiable
        @breaks_graph
        def backward(ctx: Any, *grad_outputs: Any) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
            return grad_outputs[0].index_select(0, ctx.own), None, None, None

    return Attention, TokenGather


class _Place:
    """The place of a tensor among those that autograd keeps."""

    def __init__(self, number: int) -> None:
        self.number = number


def _put_away(x: torch.Tensor, kept: list[torch.Tensor]) -> Any:
    """A tensor with a graph stays: autograd would hand out a copy without it."""
    if x.requires_grad:
        return x
    for number, other in enumerate(kept):
        if other is x:
            return _Place(number)
    kept.append(x)
    return _Place(len(kept) - 1)


def _map(value: Any, kind: type, change: Any) -> Any:
    """A nest of tuples, lists, dicts and dataclasses with all values of a kind changed. Other objects stay as
    they are."""
    if isinstance(value, kind):
        return change(value)
    if type(value) in (tuple, list):
        return type(value)(_map(one, kind, change) for one in value)
    if type(value) is dict:
        return {name: _map(one, kind, change) for name, one in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        changed = {
            one.name: _map(getattr(value, one.name), kind, change) for one in fields(value) if one.init
        }
        same = all(changed[name] is getattr(value, name) for name in changed)
        return value if same else replace(value, **changed)
    return value
