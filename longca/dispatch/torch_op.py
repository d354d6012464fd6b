"""Attention under any mask as one operator of torch, which `torch.compile` traces without a graph break.

An operator accepts only tensors and numbers, so masks are passed as a table: an int64 tensor (1 + n, 8) on
the
CPU. Row 0 is (masks, head groups, queries, keys, 0, 0, 0, 0); each further row is a band, (mask, head group,
q0, q1, k0, k1, lo, hi). A batch has one mask for all entries, or one for each.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from longca.core import Registry, UserError
from longca.dispatch.autocast import autocast_disabled
from longca.dispatch.blockwise import blockwise_attention, blockwise_gradients
from longca.dispatch.choice import OWN, cannot
from longca.kernels import Problem
from longca.masks import Mask
from longca.ops import join_sinks, sinks_gradient_op, unfit_sinks

if TYPE_CHECKING:
    from longca.ops.band import BandPlan

COLUMNS = 8  # of a table
MOST_KEPT = 64  # masks whose plans are kept for further calls, by their tables


def mask_table(masks: Sequence[Mask]) -> Tensor:
    """The table of masks of equal lengths and head groups, one for each entry of a batch; one row of bands
    for all entries if the masks are equal. `masks_of_table` is the inverse.

    Raises:
        UserError: the masks differ in lengths or in head groups.
    """
    shapes = {(mask.num_groups, mask.seqlen_q, mask.seqlen_k) for mask in masks}
    if len(shapes) != 1:
        raise UserError(
            "Masks of one batch must have equal lengths and head groups",
            why=f"these have {sorted(shapes)} (head groups, queries, keys)",
        )
    shared = masks[:1] if len({mask.digest for mask in masks}) == 1 else masks
    rows = [np.array([[len(shared), *shapes.pop(), 0, 0, 0, 0]])]
    for number, mask in enumerate(shared):
        for group, bands in enumerate(mask.groups):
            owner = np.broadcast_to(np.array([number, group]), (len(bands), 2))
            rows.append(np.concatenate([owner, bands], axis=1))
    return torch.from_numpy(np.concatenate(rows).astype(np.int64))


def masks_of_table(table: Tensor) -> tuple[Mask, ...]:
    """The masks of a table; equal tables have the same masks, so that plans are made once."""
    return _masks_of_bytes(table.detach().cpu().contiguous().numpy().tobytes())


@functools.lru_cache(maxsize=MOST_KEPT)
def _masks_of_bytes(content: bytes) -> tuple[Mask, ...]:
    rows = np.frombuffer(content, dtype=np.int64).reshape(-1, COLUMNS)
    num_masks, num_groups, seqlen_q, seqlen_k = rows[0, :4].tolist()
    bands = rows[1:]
    masks = []
    for number in range(num_masks):
        own = bands[bands[:, 0] == number]
        groups = tuple(own[own[:, 1] == group, 2:] for group in range(num_groups))
        masks.append(Mask(seqlen_q, seqlen_k, groups))
    return tuple(masks)


def traced_attention(
    q: Tensor, k: Tensor, v: Tensor, table: Tensor, scale: float, sinks: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(out (B, Tq, H, D), LSE (B, Tq, H)) by `band`, or by the reference where `band` does not run.

    Differentiable in q, k, v and sinks, by out and LSE.

    Args:
        q: (B, Tq, H, D); k, v: (B, Tk, G, D).
        table: of one mask, or of B.
        sinks: (H,), a logit for each query head.

    Raises:
        UserError: the table's lengths or its number of masks are not those of the tensors, or these cannot be
            the sinks.
    """
    if sinks is not None and (unfit := unfit_sinks(sinks, q.shape[-2], q.device)) is not None:
        raise UserError(unfit[0], todo=unfit[1])
    return masked_attention_op(q, k, v, table, scale, sinks)


@torch.library.custom_op("longca::masked_attention", mutates_args=())
def masked_attention_op(
    q: Tensor, k: Tensor, v: Tensor, table: Tensor, scale: float, sinks: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    results = []
    with autocast_disabled(q.device):
        for mask, one_q, one_k, one_v in zip(_entry_masks(q, k, table), q, k, v, strict=True):
            plan = _band_plan(mask, one_q, one_k)
            if plan is None:
                results.append(blockwise_attention(one_q, one_k, one_v, mask, scale, sinks))
            else:
                from longca.ops.band import band_forward

                result = band_forward(one_q.contiguous(), one_k.contiguous(), one_v.contiguous(), plan, scale)
                results.append(result if sinks is None else join_sinks(*result, sinks))
    out, lse = (torch.stack(parts) for parts in zip(*results, strict=True))
    return out, lse


@masked_attention_op.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, table: Tensor, scale: float, sinks: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    return torch.empty(q.shape, dtype=q.dtype, device=q.device), _lse_memory(q)


@torch.library.custom_op("longca::masked_attention_backward", mutates_args=())
def masked_attention_backward_op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    dout: Tensor | None,
    dlse: Tensor | None,
    table: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    results = []
    with autocast_disabled(q.device):
        for number, mask in enumerate(_entry_masks(q, k, table)):
            entry = q[number], k[number], v[number], out[number], lse[number]
            of_out, of_lse = (None if x is None else x[number] for x in (dout, dlse))
            plan = _band_plan(mask, *entry[:2])
            if plan is None:
                results.append(blockwise_gradients(*entry, of_out, of_lse, mask, scale))
            else:
                results.append(_band_gradients(entry, of_out, of_lse, plan, scale))
    dq, dk, dv = (torch.stack(parts) for parts in zip(*results, strict=True))
    return dq, dk, dv


@masked_attention_backward_op.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    return dq, dk, dv


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, table, scale, sinks = inputs
    ctx.save_for_backward(q, k, v, *output, table, sinks)
    ctx.scale = scale
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Any, ...]:
    q, k, v, out, lse, table, sinks = ctx.saved_tensors
    if dout is None and dlse is None:
        return (None,) * 6
    grads = masked_attention_backward_op(q, k, v, out, lse, dout, dlse, table, ctx.scale)
    dsinks = None
    if sinks is not None and ctx.needs_input_grad[5]:
        rows = (None if x is None else x.flatten(0, 1) for x in (out, lse, dout, dlse))
        dsinks = sinks_gradient_op(*rows, sinks)
    return *grads, None, None, dsinks


masked_attention_op.register_autograd(_differentiate, setup_context=_save)


def _entry_masks(q: Tensor, k: Tensor, table: Tensor) -> list[Mask]:
    """The mask of each entry of a batch."""
    masks = masks_of_table(table)
    given = (masks[0].seqlen_q, masks[0].seqlen_k)
    lengths = (q.shape[1], k.shape[1])
    if given != lengths or len(masks) not in (1, len(q)):
        raise UserError(
            f"{len(masks)} masks of {given[0]} queries × {given[1]} keys do not fit a batch of {len(q)}",
            why=f"its entries have {lengths[0]} queries and {lengths[1]} keys",
        )
    return list(masks) * len(q) if len(masks) == 1 else list(masks)


def _lse_memory(q: Tensor) -> Tensor:
    exact = torch.float64 if q.dtype == torch.float64 else torch.float32
    return torch.empty(q.shape[:-1], dtype=exact, device=q.device)


def _band_plan(mask: Mask, q: Tensor, k: Tensor) -> BandPlan | None:
    """`band`'s plan for this mask and such tensors, made at the first call; None if the reference
    computes."""
    if not q.is_cuda or q.dtype == torch.float64:
        return None
    key = "masked_attention_op", q.shape[-2], k.shape[-2], q.shape[-1], q.dtype, q.device
    if key not in mask.kept:
        heads = q.shape[-2], k.shape[-2], q.shape[-1]
        problem = Problem(mask, *heads, q.dtype, q.device, needs_backward=True, records_costs=False)
        if cannot(Registry("kernel").load(OWN), problem, return_lse=True, deterministic=True) is not None:
            mask.kept[key] = None
        else:
            from longca.ops.band import plan_band_attention

            num_q_heads, num_kv_heads, head_dim = heads
            mask.kept[key] = plan_band_attention(
                mask, num_q_heads=num_q_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, device=q.device
            )
            torch.cuda.current_stream(
                q.device
            ).synchronize()  # so that calls on other streams find it written
    return mask.kept[key]


def _band_gradients(
    entry: Sequence[Tensor], dout: Tensor | None, dlse: Tensor | None, plan: BandPlan, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    from longca.ops.band import band_backward

    q, k, v, out, lse = (x.contiguous() for x in entry)
    dout = torch.zeros_like(out) if dout is None else dout.to(q.dtype).contiguous()
    return band_backward(
        q, k, v, out, lse, dout, plan, scale, dlse=None if dlse is None else dlse.contiguous()
    )
