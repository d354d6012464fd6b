"""Kernels behind autograd: a prepared kernel of the contract as a differentiable function of (tokens, heads, D) tensors."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from longca.kernels.contract import Kernel, Prepared, Problem


def prepared_attention(q: Tensor, k: Tensor, v: Tensor, kernel: Kernel, problem: Problem) -> tuple[Tensor, ...]:
    """(out, LSE), or (out,) of a kernel that returns no LSE; the LSE is a constant to autograd.

    The kernel is prepared at the mask's first call for such inputs, and kept as long as the mask is.
    """
    key = ("attention", kernel.name, problem.num_q_heads, problem.num_kv_heads, problem.head_dim, problem.dtype, problem.device,
           problem.needs_backward)
    kept = problem.mask.kept
    if key not in kept:
        with torch.enable_grad():  # a kernel may try its backward once
            kept[key] = kernel.prepare(problem)
    return _PreparedCall.apply(q, k, v, kept[key])  # type: ignore[no-any-return]


class _PreparedCall(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, prepared: Prepared) -> tuple[Tensor, ...]:
        with torch.set_grad_enabled(prepared.problem.needs_backward):  # kernels may use autograd themselves
            result = prepared.forward(*(prepared.to_layout(x.detach()) for x in (q, k, v)))
        out = prepared.from_layout(result.out).detach()
        if prepared.problem.needs_backward:
            ctx.prepared, ctx.result = prepared, result
            ctx.save_for_backward(q, k, v, out)  # `result` may hold their memory: so autograd tells where it was written to
        if result.lse is None:
            return (out,)
        lse = prepared.lse_from_layout(result.lse).detach()
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx, *grad_outputs: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.saved_tensors  # noqa: B018  (autograd says so if one of them was written to)
        prepared, dout = ctx.prepared, grad_outputs[0]
        with torch.enable_grad():
            grads = prepared.backward(ctx.result, prepared.to_layout(dout))
        return *(prepared.from_layout(grad) for grad in grads), None
