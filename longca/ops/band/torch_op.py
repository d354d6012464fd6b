"""Band attention as operators of torch: traced by torch.compile, differentiated by autograd, capturable in
CUDA graphs.

An operator accepts only tensors and numbers, so a plan is passed as its tables and numbers.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from longca.ops.band.checks import as_usable, check_layout
from longca.ops.band.config import BandKernel, TileConfig
from longca.ops.band.launch import backward_memory, launch_backward, launch_forward
from longca.ops.band.plan import BandPlan, DqTarget
from longca.ops.band.tables.schedule import NUMBERS, TABLES, TileSchedule
from longca.ops.sinks import join_sinks, sinks_gradient_op

CONFIG = tuple(field.name for field in fields(TileConfig))
# of one kernel
NUM_TABLES = len(TABLES)
NUM_NUMBERS = len(NUMBERS) + len(CONFIG)


def flatten(plan: BandPlan) -> tuple[list[Tensor], list[int]]:
    """(tables, numbers); `unflatten` is the inverse."""
    tables: list[Tensor] = []
    numbers: list[int] = []
    for schedule, config in plan.kernels.values():
        tables += schedule.tables
        numbers += [int(getattr(schedule, name)) for name in NUMBERS]
        # torch.compile of 2.11 does not follow `astuple`, which copies
        numbers += [getattr(config, name) for name in CONFIG]
    return tables, numbers


def unflatten(tables: Sequence[Tensor], numbers: Sequence[Any], q: Tensor, k: Tensor) -> BandPlan:
    """A plan for flat q and k, from the result of `flatten`: numbers are also truth values and orders."""
    kernels = {}
    for index, kernel in enumerate(list(BandKernel)[: len(tables) // NUM_TABLES]):
        of_schedule: dict[str, Any] = dict(
            zip(TABLES, tables[index * NUM_TABLES : (index + 1) * NUM_TABLES], strict=True)
        )
        of_kernel = numbers[index * NUM_NUMBERS : (index + 1) * NUM_NUMBERS]
        values = of_kernel[: len(NUMBERS)]
        config = of_kernel[len(NUMBERS) :]
        others: dict[str, Any] = {
            name: kind(value) for (name, kind), value in zip(NUMBERS.items(), values, strict=True)
        }
        kernels[kernel] = TileSchedule(**of_schedule, **others), TileConfig(*config)
    return BandPlan(len(q), len(k), q.shape[1], k.shape[1], q.shape[2], q.device, kernels)


@torch.library.custom_op("longca::band_forward", mutates_args=())
def band_forward_op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tables: Sequence[Tensor],
    numbers: Sequence[int],
    scale: float,
    initial_out: Tensor | None,
    initial_lse: Tensor | None,
    out_dtype: torch.dtype,
    sinks: Tensor | None,
) -> tuple[Tensor, Tensor]:
    check_layout(q=q, k=k, v=v)
    out, lse = _forward_memory(q, out_dtype)
    initial = (
        None
        if initial_out is None or initial_lse is None
        else (initial_out.contiguous(), initial_lse.contiguous())
    )
    launch_forward(q, k, v, unflatten(tables, numbers, q, k), scale, out=out, lse=lse, initial=initial)
    return (out, lse) if sinks is None else join_sinks(out, lse, sinks)


@band_forward_op.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tables: Sequence[Tensor],
    numbers: Sequence[int],
    scale: float,
    initial_out: Tensor | None,
    initial_lse: Tensor | None,
    out_dtype: torch.dtype,
    sinks: Tensor | None,
) -> tuple[Tensor, Tensor]:
    return _forward_memory(q, out_dtype)


@torch.library.custom_op("longca::band_backward", mutates_args=())
def band_backward_op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    dout: Tensor,
    dlse: Tensor | None,
    tables: Sequence[Tensor],
    numbers: Sequence[int],
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    plan = unflatten(tables, numbers, q, k)
    dq, dk, dv = backward_memory(q, k, v, None)
    dlse = None if dlse is None else dlse.contiguous()
    launch_backward(
        q,
        k,
        v,
        out,
        lse,
        as_usable(dout.to(q.dtype)),
        dlse,
        plan,
        scale,
        targets=[DqTarget(plan, dq)],
        dk=dk,
        dv=dv,
    )
    return dq, dk, dv


@band_backward_op.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    dout: Tensor,
    dlse: Tensor | None,
    tables: Sequence[Tensor],
    numbers: Sequence[int],
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    return backward_memory(q, k, v, None)


def _forward_memory(q: Tensor, out_dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return (
        torch.empty(q.shape, dtype=out_dtype, device=q.device),
        torch.empty(q.shape[:2], dtype=torch.float32, device=q.device),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, tables, numbers, scale, *_, sinks = inputs
    ctx.save_for_backward(q, k, v, sinks, *output, *tables)
    ctx.numbers = numbers
    ctx.scale = scale
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Any, ...]:
    q, k, v, sinks, out, lse, *tables = ctx.saved_tensors
    grads: tuple[Tensor | None, ...] = (None, None, None)
    dsinks = None
    if dout is not None or dlse is not None:
        grads = band_backward_op(
            q,
            k,
            v,
            out,
            lse,
            torch.zeros_like(out) if dout is None else dout,
            dlse,
            tables,
            ctx.numbers,
            ctx.scale,
        )
        if sinks is not None:
            dsinks = sinks_gradient_op(out, lse, dout, dlse, sinks)
    return *grads, [None] * len(tables), None, None, None, None, None, dsinks


band_forward_op.register_autograd(_differentiate, setup_context=_save)
