"""`longca.attention`: attention under any mask, by the fastest correct operator for these inputs on this
device.

    out = longca.attention(q, k, v, mask)
    out, lse = longca.attention(q, k, v, mask, return_lse=True)

Tensors are (tokens, heads, D), the layout of kernels for packed sequences. A leading batch dimension is
optional: then one mask serves all entries, or a list has one mask for each entry, like the result of
`Mask.from_document_ids` for a 2-D array of ids. For a mask over all tokens of the batch pass `x.flatten(0,
1)`. Convert tensors in SDPA's layout (batch, heads, tokens, D) by `x.transpose(1, 2)`; kernels copy them
again if necessary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from longca.core import UserError, truth
from longca.dispatch.autocast import autocast_disabled
from longca.dispatch.call import attend
from longca.masks import Mask, breaks_graph
from longca.ops import refuse_transforms, unfit_sinks

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
LAYOUT = "(tokens, heads, D) or (batch, tokens, heads, D)"


@breaks_graph
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask | Sequence[Mask],
    *,
    scale: float | None = None,
    sinks: Tensor | None = None,
    return_lse: bool = False,
    kernel: str | None = None,
    deterministic: bool = True,
) -> Any:
    """Attention under a mask. Rows that see no key: out 0, LSE −inf (with sinks: the sink), gradients 0.

    On an NVIDIA GPU this runs `band`, or an installed kernel that is faster for such a call in the committed
    records; otherwise a reference in plain torch. Plans are made at a mask's first call for such inputs and
    live as long as the mask.

    Args:
        q: (Tq, H, D), bf16, fp16, float32 or float64; or a batch of them, (B, Tq, H, D).
        k, v: (Tk, G, D) alike, H a multiple of G.
        mask: over Tq queries × Tk keys; with a batch, one mask for all entries, or a list of B masks.
        scale: factor on q·k; 1 / √D by default. A constant for autograd.
        sinks: (H,), a logit for each query head, as of gpt-oss: exp(sink) is added to the row sums of
            exp(scale·q·k), so that weights add up to less than 1. bf16, fp16, float32 or float64; computed in
            the dtype of the LSE.
        return_lse: return the log of the row sums of exp(scale·q·k), with the sinks, as well.
        kernel: name of the kernel to use, as `longca list kernels` shows them, or "reference".
        deterministic: the same inputs give bit-identical gradients; False also considers faster kernels
            without this guarantee.

    Returns:
        out, of the shape and dtype of q; or (out, lse), lse (Tq, H) or (B, Tq, H) in float32 (float64 for
        float64). Differentiable once in q, k, v and sinks; `band` and the reference also differentiate the
        LSE, which is a constant for other kernels.

    Raises:
        UserError: one line with the problem and the remedy.
    """
    _check(q, k, v, mask, scale)
    if sinks is not None:
        if (unfit := unfit_sinks(sinks, q.shape[-2], q.device)) is not None:
            raise UserError(unfit[0], todo=unfit[1])
        sinks = sinks.to(torch.float64 if q.dtype == torch.float64 else torch.float32)
    if kernel is not None and not isinstance(kernel, str):
        raise UserError(
            f"Argument 'kernel' is {kernel!r}", todo="Give a name; `longca list kernels` shows all"
        )
    return_lse = truth("Argument 'return_lse'", return_lse)
    deterministic = truth("Argument 'deterministic'", deterministic)
    options = scale, return_lse, kernel, deterministic, sinks
    with autocast_disabled(q.device):
        if q.ndim == 4:
            results = _attend_entries(q, k, v, _masks(mask, len(q)), *options)
        else:
            results = attend(q, k, v, _masks(mask, 1)[0], *options)
    return tuple(results) if return_lse else results[0]


def _masks(mask: Mask | Sequence[Mask], count: int) -> list[Mask]:
    """The mask of each of `count` entries."""
    return [mask] * count if isinstance(mask, Mask) else list(mask)


def _attend_entries(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    masks: Sequence[Mask],
    *options: *tuple[float | None, bool, str | None, bool, Tensor | None],
) -> list[Tensor]:
    """The stacked results of `attend` for each entry of a batch."""
    size = len(q)
    parts: tuple[Tensor, ...] = _Entries.apply(q, k, v)
    entries = [
        attend(parts[entry], parts[size + entry], parts[2 * size + entry], mask, *options)
        for entry, mask in enumerate(masks)
    ]
    return [torch.stack(results) for results in zip(*entries, strict=True)]


class _Entries(torch.autograd.Function):
    """The entries of q, then those of k and of v. Unlike the backward of `unbind`, this one supports any
    dtype under autocast."""

    @staticmethod
    def forward(ctx: Any, *batches: Tensor) -> tuple[Tensor, ...]:
        return tuple(entry for batch in batches for entry in batch.unbind())

    @staticmethod
    @breaks_graph
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        size = len(grads) // 3
        with autocast_disabled(grads[0].device):
            return tuple(torch.stack(grads[start : start + size]) for start in range(0, 3 * size, size))


def _check(q: Tensor, k: Tensor, v: Tensor, mask: Mask | Sequence[Mask], scale: float | None) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise UserError(
                f"{name} must be a tensor, and it is {type(x).__name__}", todo="torch.as_tensor(x) makes one"
            )
        if x.ndim not in (3, 4) or x.ndim != q.ndim:
            raise UserError(
                f"{name} must be {LAYOUT}{'' if x is q else ' like q'}, and it is {tuple(x.shape)}",
                todo="x.unsqueeze(1) adds an axis of one head",
            )
    several = isinstance(mask, (list, tuple))
    masks: list[Any] = list(mask) if several else [mask]
    for of_entry in masks:
        if not isinstance(of_entry, Mask):
            kind = f"{f'a {type(mask).__name__} of ' if several else ''}{type(of_entry).__name__}"
            raise UserError(
                f"The mask must be a longca.Mask, and it is {kind}",
                todo="Make one with longca.build_mask or longca.Mask.from_…",
            )
    if several and (q.ndim == 3 or len(masks) != len(q)):
        raise UserError(
            f"{len(masks)} masks are for a batch of as many entries, and q is {tuple(q.shape)}",
            todo="Give (batch, tokens, heads, D) and a mask for each entry",
        )
    if not q.dtype == k.dtype == v.dtype or q.dtype not in DTYPES:
        raise UserError(
            f"q, k and v must be of one dtype of bf16, fp16, float32 and float64; they are {q.dtype}, "
            f"{k.dtype} and {v.dtype}",
            todo="Convert them with .to(dtype)",
        )
    if not q.device == k.device == v.device:
        raise UserError(
            f"q, k and v must be on one device; they are on {q.device}, {k.device} and {v.device}",
            todo="Move them with .to(device)",
        )
    refuse_transforms(q, k, v)
    shapes = f"q is {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)}"
    if k.shape != v.shape or q.shape[-1] != k.shape[-1] or q.shape[:-3] != k.shape[:-3]:
        raise UserError(
            f"k and v must be of one shape, and of q's batch and head dim; {shapes}",
            todo="Give k and v of the same tokens, heads and D",
        )
    if q.shape[-1] == 0 or (q.ndim == 4 and len(q) == 0):
        raise UserError(f"the {'batch' if q.shape[-1] else 'head dim'} is empty; {shapes}")
    num_q_heads = q.shape[-2]
    num_kv_heads = k.shape[-2]
    if num_kv_heads == 0 or num_q_heads == 0 or num_q_heads % num_kv_heads:
        raise UserError(
            f"{num_q_heads} query heads cannot be shared evenly among {num_kv_heads} KV heads; {shapes}",
            todo=f"Give {LAYOUT}; x.transpose(1, 2) makes it from (batch, heads, tokens, D)",
        )
    for of_entry in masks:
        _check_lengths(q, k, of_entry)
        if num_kv_heads % of_entry.num_groups:
            raise UserError(
                f"{num_kv_heads} KV heads cannot share a mask of {of_entry.num_groups} head groups evenly",
                todo=f"Build the mask for {num_kv_heads} KV heads",
            )
    if isinstance(scale, Tensor) and scale.requires_grad and torch.is_grad_enabled():
        raise UserError(
            "scale requires a gradient, and attention has none by it",
            todo="Multiply q by it, or give scale.item()",
        )
    if scale is not None and not _is_scale(scale):
        raise UserError(
            f"scale must be positive and finite, and it is {scale}", todo="To turn signs, turn those of q"
        )


def _is_scale(scale: Any) -> bool:
    """True for a positive finite number, also in a tensor."""
    try:
        return bool(0 < scale < math.inf)
    except (TypeError, ValueError, RuntimeError):  # not comparable; several numbers
        return False


def _check_lengths(q: Tensor, k: Tensor, mask: Mask) -> None:
    lengths = (q.shape[-3], k.shape[-3])
    masked = (mask.seqlen_q, mask.seqlen_k)
    if lengths == masked:
        return
    todo = "Build a mask of these lengths"
    if (q.shape[-2], k.shape[-2]) == masked:
        todo = f"Give {LAYOUT}: x.transpose(-2, -3) makes it"
    elif q.ndim == 4 and (len(q) * lengths[0], len(q) * lengths[1]) == masked:
        todo = "Give x.flatten(0, 1) where the mask is over all tokens of the batch"
    elif mask.documents is not None and masked[0] < lengths[0] == lengths[1]:
        todo = (
            f"Give Mask.from_cu_seqlens(…, seqlen={lengths[0]}) where the tokens behind the last "
            f"document are padding"
        )
    lengths_text = f"q and k have {lengths[0]} and {lengths[1]} tokens"
    raise UserError(f"The mask is over {masked[0]} queries × {masked[1]} keys, and {lengths_text}", todo=todo)
