"""A prepared strategy as a differentiable function: autograd, activation checkpointing and autocast see one
operation.

The tensors that backward needs are saved by `save_for_backward`, so that hooks of saved tensors apply to
them: activation checkpointing drops them after forward and recomputes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from longca.core import UserError
from longca.cp.calls.request import DTYPES
from longca.masks import breaks_graph

if TYPE_CHECKING:
    import torch

    from longca.cp.calls.agreement import Agreement
    from longca.cp.calls.request import CpRequest
    from longca.cp.comm.backend import Comm
    from longca.cp.contract import PreparedStrategy


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
    if not isinstance(dim, int) or isinstance(dim, bool):
        raise UserError(
            f"Argument 'dim' of {call} is {dim!r}", todo="Give the number of the dimension of tokens"
        )
    if not -x.dim() <= dim < x.dim() or x.shape[dim] != num_tokens:
        raise UserError(
            f"Argument 'x' of {call} is {shape_text(x)}",
            why=f"dimension {dim} must have the {num_tokens} tokens {whose}",
            todo=f"{todo}, and its dimension of tokens as dim=",
        )


def check_shard(x: Any, dim: Any, num_tokens: int, device: torch.device) -> None:
    """Raise UserError if `unshard` cannot take `x`: `num_tokens` of them, on that device."""
    from longca.ops import refuse_transforms

    check_tokens("unshard", x, dim, num_tokens, "of this rank", "Give what came from cp.shard")
    refuse_transforms(x)
    if x.device != device:
        raise UserError(
            f"Argument 'x' of unshard is on {x.device}", why=f"this rank is on {device}", todo="Move it there"
        )


def shard_tokens(
    x: torch.Tensor, dim: int, seqlen: int, positions: torch.Tensor, agreement: Agreement, world: int
) -> torch.Tensor:
    """The tokens at these positions; differentiable. Raises UserError if that dimension has other tokens.

    Args:
        seqlen: tokens over all ranks.
        agreement: compares what ranks have sharded with their next call.
        world: number of ranks.
    """
    import torch

    try:
        check_tokens("shard", x, dim, seqlen, "of the mask", "Give the whole sequence on every rank")
    except UserError as error:
        agreement.shards.add_failure(error)
        raise
    if world > 1 and not torch.compiler.is_compiling():
        agreement.shards.add(x, dim)
    return _rows(x, dim, positions.to(x.device))


def _rows(x: torch.Tensor, dim: int, numbers: torch.Tensor) -> torch.Tensor:
    """The rows of these numbers along a dimension; differentiable."""
    import torch

    signed = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
    if x.dtype in signed:  # torch picks no rows of these
        return x.view(signed[x.dtype]).index_select(dim, numbers).view(x.dtype)
    return x.index_select(dim, numbers)


def shape_text(x: Any) -> str:
    return f"of shape {' × '.join(map(str, x.shape)) or '()'}"


def check_tensors(
    request: CpRequest, num_tokens: int, seqlen: int, device: torch.device, tensors: Sequence[torch.Tensor]
) -> None:
    """Raise UserError if q, k and v are not what was planned, or sinks are not those of its heads.

    Args:
        num_tokens: of this rank.
        seqlen: tokens over all ranks.
        device: of this rank.
        tensors: q, k, v, and sinks if there are any.
    """
    import torch

    from longca.ops import refuse_transforms, unfit_sinks

    q, k, v, *sinks = tensors
    lead = tuple(q.shape[:1]) if isinstance(q, torch.Tensor) and q.dim() == 4 else ()
    if lead == (0,):
        raise UserError("Argument 'q' of attention is an empty batch", todo="Give at least one sequence")
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
    refuse_transforms(*tensors)
    if sinks and (unfit := unfit_sinks(sinks[0], request.num_q_heads, device)) is not None:
        raise UserError(f"Argument 'sinks' of attention: {unfit[0]}", todo=unfit[1])
    if not request.needs_backward and torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        raise UserError(
            "Attention is asked for gradients",
            why="it was planned with backward=False",
            todo="Give backward=True to context_parallel, or call it under torch.no_grad()",
        )


def check_strategy_of_sinks(request: CpRequest, prepared: PreparedStrategy, strategy: str) -> None:
    """Raise UserError if a strategy, or its kernel, takes no sinks."""
    problem = prepared.problem
    reason = "the strategy does not add them"
    if prepared.takes_sinks:
        reason = request.load_kernel().in_parts(problem.call_spec, problem.device.type)
    if reason is not None:
        raise UserError(
            f"Strategy '{strategy}' with kernel '{request.kernel}' takes no sinks",
            why=reason,
            todo="Give another one to context_parallel",
        )


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
    sinks_H: torch.Tensor | None,
    agreement: Agreement,
    call: ForwardCall,
) -> torch.Tensor:
    """The output of this rank's queries, L × H × D.

    Args:
        sinks_H: float32, of all query heads.
        agreement: has begun the forward call; backward calls are compared by it as well.
        call: the forward call, by which its backward call is named.
    """
    return _functions()[0].apply(q_LHD, k_LGD, v_LGD, sinks_H, prepared, agreement, call)


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

    from longca.ops import refuse_transforms

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(
            ctx: Any,
            q: torch.Tensor,
            k: torch.Tensor,
            v: torch.Tensor,
            sinks: torch.Tensor | None,
            prepared: PreparedStrategy,
            agreement: Agreement,
            call: ForwardCall,
        ) -> torch.Tensor:
            # some kernels keep a graph of their own
            with agreement.messages(), torch.enable_grad(), torch.autocast(q.device.type, enabled=False):
                q, k, v = (x.detach().contiguous() for x in (q, k, v))
                if sinks is None:
                    result = prepared.forward(q, k, v)
                else:
                    result = prepared.forward_with_sinks(q, k, v, sinks.detach())
            if any(ctx.needs_input_grad):
                kept: list[torch.Tensor] = []
                ctx.prepared = prepared
                ctx.agreement = agreement
                ctx.call = call
                ctx.with_sinks = sinks is not None
                ctx.result = _map(result, torch.Tensor, lambda x: _put_away(x, kept))
                ctx.save_for_backward(*kept)
            return result.out

        @staticmethod
        @breaks_graph
        def backward(ctx: Any, *grad_outputs: Any) -> tuple[Any, ...]:
            if torch.is_grad_enabled():
                raise UserError(
                    "Attention over ranks is differentiable once",
                    why="backward was called with create_graph=True",
                    todo="Leave that out",
                )
            kept = ctx.saved_tensors  # where they were dropped, forward runs again here, a call of its own
            result = _map(ctx.result, _Place, lambda leaf: kept[leaf.number])
            ctx.agreement.begin(
                "backward", ctx.call.of_backward, lambda: refuse_transforms(*grad_outputs), ctx.call.series
            )
            with ctx.agreement.messages(), torch.autocast(grad_outputs[0].device.type, enabled=False):
                dout = grad_outputs[0].contiguous()
                if ctx.with_sinks:
                    grads = ctx.prepared.backward_with_sinks(result, dout)
                else:
                    grads = *ctx.prepared.backward(result, dout), None
            ctx.agreement.end()
            return *grads, None, None, None

    class TokenGather(torch.autograd.Function):
        @staticmethod
        def forward(
            ctx: Any, shard: torch.Tensor, comm: Comm, num_rows: list[int], inverse: torch.Tensor
        ) -> torch.Tensor:
            row = shard.shape[1:].numel() * shard.element_size()
            start = sum(num_rows[: comm.rank])
            ctx.own = torch.empty_like(inverse)
            ctx.own[inverse] = torch.arange(len(inverse), device=inverse.device)
            ctx.own = ctx.own[start : start + num_rows[comm.rank]]
            own = shard.detach().resolve_conj().resolve_neg().reshape(-1).view(torch.uint8)  # any dtype
            sent = own.repeat(comm.world)
            received = comm.all_to_all(sent, [len(own)] * comm.world, [rows * row for rows in num_rows])
            rows = received.view(shard.dtype).view(len(inverse), *shard.shape[1:])
            return _rows(rows, 0, inverse)

        @staticmethod
        @breaks_graph
        def backward(ctx: Any, *grad_outputs: Any) -> tuple[Any, ...]:
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
        return type(value)(_map(item, kind, change) for item in value)
    if type(value) is dict:
        return {name: _map(item, kind, change) for name, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        changed = {
            field.name: _map(getattr(value, field.name), kind, change)
            for field in fields(value)
            if field.init
        }
        same = all(changed[name] is getattr(value, name) for name in changed)
        return value if same else replace(value, **changed)
    return value
