"""Band attention: exact attention for any list of bands and any block-sparse mask, forward and backward.

    plan = plan_band_attention(mask, num_q_heads=64, num_kv_heads=8, head_dim=128, device=q.device)
    out = band_attention(q, k, v, plan)

Shapes: q (…, Tq, Hq, D), k and v (…, Tk, Hkv, D) with Hq a multiple of Hkv, LSE (…, Tq, Hq). Leading
    dimensions are flattened into the
tokens, so that the mask is over the tokens of the whole batch. bf16 or fp16.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from longca.masks import Mask
from longca.ops.band import eager
from longca.ops.band.checks import check_device, check_inputs, check_result, checked_scale, flat_initial
from longca.ops.band.config import BandKernel
from longca.ops.band.plan import BandPlan, plan_band_attention
from longca.ops.band.torch_op import band_forward_op, flatten
from longca.ops.sinks import join_sinks, unfit_sinks

__all__ = ["BandPlan", "band_attention", "band_backward", "band_forward", "plan_band_attention"]


def band_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask | BandPlan,
    *,
    scale: float | None = None,
    sinks: Tensor | None = None,
    return_lse: bool = False,
    initial: tuple[Tensor, Tensor] | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention under a mask. Rows that see no key: out 0, LSE −inf (with sinks: the sink), gradients 0.
    Differentiable in q, k, v and sinks, by out and LSE.

    Args:
        mask: a plan, or a mask. The plan of a mask is made at its first use and lives as long as the mask.
            torch.compile needs a plan.
        scale: factor on q·k, positive; 1 / √D by default.
        sinks: (Hq,), a logit for each query head, of any float dtype: exp(sink) is added to the sum of each
            row, after the keys of `initial`.
        initial: (out, LSE) of the same queries over other keys, both float32; the result then covers both
            sets of keys. Both are constants for autograd; gradients of q, k, v are correct for the LSE over
            all keys.
        out_dtype: dtype of the output; that of q by default. Use float32 for outputs that are the initial
            value of a further call.

    Returns:
        out, or (out, LSE) with `return_lse`; LSE is float32, the natural log.

    Raises:
        ValueError: what does not fit, and how to mend it.
    """
    plan = mask if isinstance(mask, BandPlan) else _plan_of(mask, q, k)
    if sinks is not None and (unfit := unfit_sinks(sinks, plan.num_q_heads, q.device)) is not None:
        raise ValueError(f"{unfit[0]}: {unfit[1]}")
    inputs = (q, k, v) if sinks is None else (q, k, v, sinks)
    needs_grad = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
    if needs_grad and BandKernel.DKDV not in plan.kernels:
        raise ValueError(
            "the plan is for the forward pass alone, and an input requires gradients: make it with "
            "needs_backward=True"
        )
    if not eager.is_eager(*inputs):
        out, lse = _by_operator(q, k, v, sinks, plan, scale, initial, out_dtype)
    else:
        flat_q = q
        flat_k = k
        flat_v = v
        if not q.ndim == k.ndim == v.ndim == 3:
            check_inputs(plan, q, k, v)
            flat_q, flat_k, flat_v = (x.flatten(0, -3) for x in (q, k, v))
        if initial is not None:
            initial = flat_initial(q, initial)
        if needs_grad:
            out, lse = eager.BandAttention.apply(
                flat_q, flat_k, flat_v, sinks, plan, scale, initial, out_dtype
            )
        else:
            out, lse = eager.forward(
                flat_q, flat_k, flat_v, plan, scale, initial=initial, out_dtype=out_dtype
            )
            if sinks is not None:
                out, lse = join_sinks(out, lse, sinks)
    if q.ndim != 3:
        out = out.view(q.shape)
        lse = lse.view(q.shape[:-1])
    return (out, lse) if return_lse else out


def _by_operator(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None,
    plan: BandPlan,
    scale: float | None,
    initial: tuple[Tensor, Tensor] | None,
    out_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor]:
    """(out, LSE) of flat queries, by a custom operator that torch.compile and other tracers support."""
    check_inputs(plan, q, k, v)
    check_result("out_dtype", out_dtype)
    flat_q, flat_k, flat_v = (x.flatten(0, -3) for x in (q, k, v))
    tables, numbers = flatten(plan)
    return band_forward_op(
        flat_q,
        flat_k,
        flat_v,
        tables,
        numbers,
        checked_scale(plan, scale),
        *(flat_initial(q, initial) if initial is not None else (None, None)),
        out_dtype or q.dtype,
        sinks,
    )


def band_forward(
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
    """(out (Tq, H, D), LSE (Tq, H) float32), without autograd.

    Args:
        initial: as in `band_attention`.
        into: contiguous (out, LSE) to write to instead; may be the initial ones.

    For sinks see `longca.ops.join_sinks`, and `sinks_gradient`; `band_backward` takes the joined output and
    LSE.
    """
    return eager.forward(q, k, v, plan, scale, initial=initial, out_dtype=out_dtype, into=into)


def band_backward(
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
    """(dq, dk, dv) from an output and LSE that may cover more keys: the contribution of the given keys to the
    gradients.

    Args:
        out: (Tq, H, D), of any dtype; lse: (Tq, H) float32.
        dlse: gradient by the LSE.
        grad_dtype: float32 for contributions that are accumulated; the inputs' dtype by default.
    """
    return eager.backward(q, k, v, out, lse, dout, plan, scale, dlse=dlse, grad_dtype=grad_dtype)


def band_backward_onto(
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
    """(dk, dv) of `band_backward`; dq is added to that of other keys, for one part of the queries after
    another.

    Args:
        parts: (plan of some queries by `of_rows`, or of all; dq of other keys, float32, or None; destination
            of the sum, any dtype). Both tensors are contiguous, have the shape of q, and may be the same.
    """
    return eager.backward_onto(q, k, v, out, lse, dout, plan, parts, scale)


def _plan_of(mask: Mask, q: Tensor, k: Tensor) -> BandPlan:
    """The mask's cached plan for such inputs. The first use makes it and waits for the GPU."""
    if torch.compiler.is_compiling():
        raise ValueError("under torch.compile, give the plan of plan_band_attention instead of a mask")
    check_device(q)
    if q.ndim < 3 or k.ndim < 3:
        raise ValueError(
            f"q, k and v must be (…, tokens, heads, D); q is {tuple(q.shape)} and k {tuple(k.shape)}"
        )
    key = "band", q.shape[-2], k.shape[-2], q.shape[-1], q.device
    kept = mask.kept if isinstance(mask, Mask) else {}
    if key not in kept:
        if q.is_cuda and torch.cuda.is_current_stream_capturing():
            raise ValueError(
                "while a CUDA graph is captured, give the plan of plan_band_attention instead of a mask"
            )
        with torch.inference_mode(False):  # training may use it later
            plan = plan_band_attention(
                mask, num_q_heads=q.shape[-2], num_kv_heads=k.shape[-2], head_dim=q.shape[-1], device=q.device
            )
        if q.is_cuda:
            # so that calls on other streams find it written
            torch.cuda.current_stream(q.device).synchronize()
        kept[key] = plan
    return kept[key]
