"""One call on (tokens, heads, D) tensors: by the reference, by `band`, or by another kernel wrapped for
autograd."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from longca.core import Registry, UserError
from longca.dispatch.autocast import autocast_disabled
from longca.dispatch.blockwise import blockwise_attention
from longca.dispatch.choice import OWN, REFERENCE, cannot, choose
from longca.dispatch.derivatives import differentiable_once
from longca.kernels import Kernel, Prepared, Problem, backward_with_sinks, forward_with_sinks
from longca.masks import Mask, breaks_graph


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    scale: float | None,
    return_lse: bool,
    name: str | None,
    deterministic: bool,
    sinks: Tensor | None,
) -> tuple[Tensor, ...]:
    """(out, lse), or (out,) without `return_lse`; q (Tq, H, D), k and v (Tk, G, D), sinks (H,) in the dtype
    of the LSE."""
    given = (q, k, v) if sinks is None else (q, k, v, sinks)
    needs_backward = torch.is_grad_enabled() and any(x.requires_grad for x in given)
    problem = Problem(
        mask, q.shape[1], k.shape[1], q.shape[2], q.dtype, q.device, needs_backward, records_costs=False
    )
    factor = 1.0 if scale is None else scale * math.sqrt(problem.head_dim)
    if q.dtype == torch.float64:
        if name not in (None, REFERENCE):
            raise UserError(f"Kernel '{name}' takes no float64", todo="Leave `kernel` out")
        name = REFERENCE
    if name is None:
        name = choose(problem, return_lse, deterministic, math.isclose(factor, 1.0), sinks is not None)
    elif name != REFERENCE:
        kernel = Registry("kernel").load(name)
        problem = problem_for(kernel, problem, return_lse, deterministic, sinks is not None)
    if name == REFERENCE:
        used = problem.scale if scale is None else scale
        return blockwise_attention(q, k, v, mask, used, sinks)[: 1 + return_lse]
    if name == OWN:
        return _by_band(q, k, v, mask, scale, return_lse, sinks)
    if not math.isclose(factor, 1.0):
        if math.frexp(factor)[0] != 0.5:
            raise UserError(
                f"Kernel '{name}' cannot scale by {scale:g}",
                todo="Leave `kernel` out",
                why="it scales by 1 / √D, and q times the rest would be rounded",
            )
        q = q * factor  # a power of two: exact
    return _by_kernel(q, k, v, sinks, Registry("kernel").load(name), problem)[: 1 + return_lse]


def problem_for(
    kernel: Kernel, problem: Problem, return_lse: bool, deterministic: bool, with_sinks: bool = False
) -> Problem:
    """The problem for which a requested kernel is prepared.

    A kernel that differs from another one only in its gradients has no forward measurements. It still serves
    calls without gradients, such as an evaluation between training steps, and is then prepared for both
    directions.

    Raises:
        UserError: the kernel does not support the call.
    """
    reason = cannot(kernel, problem, return_lse, deterministic, with_sinks)
    if reason is None:
        return problem
    both = replace(problem, needs_backward=True)
    if not problem.needs_backward and cannot(kernel, both, return_lse, False, with_sinks) is None:
        return both
    raise UserError(
        f"Kernel '{kernel.name}' cannot do this call",
        why=reason,
        todo="" if "give " in reason else "Leave `kernel` out",
    )


def _by_band(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None, return_lse: bool, sinks: Tensor | None
) -> tuple[Tensor, ...]:
    from longca.ops.band import band_attention, unusable

    q, k, v = (
        x
        if unusable(x, heads_side_by_side=x is not q) is None
        else x.clone(memory_format=torch.contiguous_format)
        for x in (q, k, v)
    )
    result = band_attention(q, k, v, mask, scale=scale, return_lse=return_lse, sinks=sinks)
    return result if isinstance(result, tuple) else (result,)


def _by_kernel(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, kernel: Kernel, problem: Problem
) -> tuple[Tensor, ...]:
    """(out, LSE), or (out,) for a kernel that returns no LSE; the LSE is a constant for autograd.

    The kernel is prepared at the mask's first call for such inputs, and lives as long as the mask.
    """
    key = (
        "attention",
        kernel.name,
        problem.num_q_heads,
        problem.num_kv_heads,
        problem.head_dim,
        problem.dtype,
        problem.device,
        problem.needs_backward,
    )
    kept = problem.mask.kept
    if key not in kept:
        # training may use it later; a kernel may try its backward once
        with torch.inference_mode(False), torch.enable_grad():
            kept[key] = kernel.prepare(problem)
        if q.is_cuda:
            # so that calls on other streams find it written
            torch.cuda.current_stream(q.device).synchronize()
    return _PreparedCall.apply(q, k, v, sinks, kept[key])


class _PreparedCall(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, prepared: Prepared
    ) -> tuple[Tensor, ...]:
        lse = None
        if sinks is None:
            # kernels may use autograd themselves
            with torch.set_grad_enabled(prepared.problem.needs_backward):
                result = prepared.forward(*(prepared.to_layout(x.detach()) for x in (q, k, v)))
            out = prepared.from_layout(result.out).detach()
            if result.lse is not None:
                lse = prepared.lse_from_layout(result.lse).detach()
        else:
            result = forward_with_sinks(prepared, q, k, v, sinks)
            assert result.lse is not None
            out = result.out.detach()  # `ctx.result` must not hold what is returned: memory is freed at once
            lse = result.lse.detach()
        if prepared.problem.needs_backward:
            ctx.prepared = prepared
            ctx.result = result
            ctx.with_sinks = sinks is not None
            # `result` may refer to their memory: so autograd detects in-place changes
            ctx.save_for_backward(q, k, v, out, sinks)
        if lse is None:
            return (out,)
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    @breaks_graph
    @differentiable_once
    def backward(ctx, *grad_outputs: Tensor):
        ctx.saved_tensors  # noqa: B018  (autograd says so if one of them was written to)
        prepared = ctx.prepared
        dout = grad_outputs[0]
        with autocast_disabled(prepared.problem.device):
            if ctx.with_sinks:
                return *backward_with_sinks(prepared, ctx.result, dout), None
            with torch.enable_grad():
                grads = prepared.backward(ctx.result, prepared.to_layout(dout))
        return *(prepared.from_layout(grad) for grad in grads), None, None
