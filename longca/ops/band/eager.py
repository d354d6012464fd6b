"""Band attention's calls outside of torch.compile: the first call is checked and recorded, later ones are
replayed by `launches.Calls`.

The cache key contains all inputs of the checks and launches: shapes, strides, dtypes and devices of the
tensors, and the scalars. A cached key has passed these checks. Only addresses differ between calls, and a
recording checks these itself.
"""

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch, _len_torch_dispatch_stack  # type: ignore[attr-defined]
from torch.nn import Parameter

from longca.masks import breaks_graph
from longca.ops.band.checks import (
    as_usable,
    check_backward,
    check_gradients,
    check_inputs,
    check_into,
    check_layout,
    check_result,
    checked_scale,
    flat_initial,
)
from longca.ops.band.launch import backward_inputs, backward_memory, launch_backward, launch_forward
from longca.ops.band.plan import BandPlan, DqTarget
from longca.ops.band.torch_op import band_backward_op, flatten
from longca.ops.sinks import join_sinks, sinks_gradient_op

PLAIN = frozenset((Tensor, Parameter))


def is_eager(*tensors: Tensor) -> bool:
    """True if kernels can be started directly: these tensors are not traced, intercepted or transformed."""
    if torch.compiler.is_compiling():
        return False
    return (
        all(type(x) in PLAIN for x in tensors)
        and _len_torch_dispatch_stack() == 0
        and _functorch.peek_interpreter_stack() is None
    )


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: BandPlan,
    scale: float | None = None,
    *,
    initial: tuple[Tensor, Tensor] | None = None,
    out_dtype: torch.dtype | None = None,
    into: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """(out, LSE); see `api.band_forward`."""
    key = (
        "forward",
        *_known_by(q, k, v),
        scale,
        out_dtype,
        initial is None,
        None if into is None else into[0].dtype,
    )
    if key not in plan.calls:
        check_inputs(plan, q, k, v)
        check_result("out_dtype", out_dtype)
    if initial is not None:
        initial = flat_initial(q, initial)
    if into is None:
        out = q.new_empty(q.shape, dtype=out_dtype or q.dtype)
        lse = q.new_empty(q.shape[:2], dtype=torch.float32)
    else:
        out, lse = into
        check_into(q, out, lse)
    if not plan.calls.replay(key, (q, k, v, out, lse, *(initial or ()))):
        check_layout(q=q, k=k, v=v)  # addresses too, which are not part of the key
        launch_forward(q, k, v, plan, checked_scale(plan, scale), out=out, lse=lse, initial=initial, key=key)
    return out, lse


def backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    dout: Tensor,
    plan: BandPlan,
    scale: float | None = None,
    *,
    dlse: Tensor | None = None,
    grad_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv); see `api.band_backward`."""
    key = (
        "backward",
        *_known_by(q, k, v, out, lse, dout, *(() if dlse is None else (dlse,))),
        scale,
        grad_dtype,
    )
    if key not in plan.calls:
        check_inputs(plan, q, k, v)
        check_backward(plan, q, out, lse, dout, dlse)
        check_result("grad_dtype", grad_dtype)
    dq, dk, dv = backward_memory(q, k, v, grad_dtype)
    _backward(key, q, k, v, out, lse, dout, dlse, plan, scale, [DqTarget(plan, dq)], dk, dv)
    return dq, dk, dv


def backward_onto(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    dout: Tensor,
    plan: BandPlan,
    parts: Sequence[tuple[BandPlan, Tensor | None, Tensor]],
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """(dk, dv); see `api.band_backward_onto`."""
    targets = [DqTarget(rows, dq, initial) for rows, initial, dq in parts]
    # a recording holds the tables of its parts, and so the identities of their plans
    key = (
        "backward onto",
        *_known_by(q, k, v, out, lse, dout),
        scale,
        *((rows.calls.identity, initial is None, dq.dtype) for rows, initial, dq in parts),
    )
    if key not in plan.calls:
        check_inputs(plan, q, k, v)
        check_backward(plan, q, out, lse, dout, None)
    for target in targets:
        check_gradients(q, target.initial, target.dq)
    dk = torch.empty_like(k)
    dv = torch.empty_like(v)
    _backward(key, q, k, v, out, lse, dout, None, plan, scale, targets, dk, dv)
    return dk, dv


def _backward(
    key: Hashable,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    dout: Tensor,
    dlse: Tensor | None,
    plan: BandPlan,
    scale: float | None,
    targets: Sequence[DqTarget],
    dk: Tensor,
    dv: Tensor,
) -> None:
    if not plan.calls.replay(key, backward_inputs(q, k, v, out, lse, dout, dlse, targets, dk, dv)):
        check_layout(q=q, k=k, v=v, dout=dout, out=out)
        launch_backward(
            q,
            k,
            v,
            out,
            lse,
            dout,
            dlse,
            plan,
            checked_scale(plan, scale),
            targets=targets,
            dk=dk,
            dv=dv,
            key=key,
        )


def _known_by(*tensors: Tensor) -> list[Hashable]:
    return [(x.shape, x.stride(), x.dtype, x.device) for x in tensors]


class BandAttention(torch.autograd.Function):
    """Band attention for autograd: (out, LSE), differentiable once in q, k, v and sinks."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Tensor | None,
        plan: BandPlan,
        scale: float | None,
        initial: tuple[Tensor, Tensor] | None,
        out_dtype: torch.dtype | None,
    ) -> tuple[Tensor, Tensor]:
        out, lse = forward(q, k, v, plan, scale, initial=initial, out_dtype=out_dtype)
        if sinks is not None:
            out, lse = join_sinks(out, lse, sinks)
        ctx.save_for_backward(q, k, v, out, lse, sinks)
        ctx.plan = plan
        ctx.scale = scale
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @breaks_graph
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] - one gradient for each output
        ctx: Any, dout: Tensor | None, dlse: Tensor | None
    ) -> tuple[Any, ...]:
        if dout is None and dlse is None:
            return (None,) * 8
        q, k, v, out, lse, sinks = ctx.saved_tensors
        dsinks = sinks_gradient_op(out, lse, dout, dlse, sinks) if ctx.needs_input_grad[3] else None
        dout = torch.zeros_like(out, dtype=q.dtype) if dout is None else dout
        # the operator raises the error that there is no second derivative
        if torch.is_grad_enabled() or not is_eager(q, k, v, dout):
            grads = band_backward_op(
                q, k, v, out, lse, dout, dlse, *flatten(ctx.plan), checked_scale(ctx.plan, ctx.scale)
            )
        else:
            dlse = None if dlse is None else dlse.contiguous()
            grads = backward(q, k, v, out, lse, as_usable(dout.to(q.dtype)), ctx.plan, ctx.scale, dlse=dlse)
        return *grads, dsinks, None, None, None, None
