"""The launch of band attention's kernels, and the choice among them. It makes no checks and never waits for
the GPU.

Shapes: q, out, dout (Tq, H, D), k and v (Tk, G, D), LSE (Tq, H).
"""

from collections.abc import Callable, Hashable, Sequence
from functools import partial, wraps
from typing import Concatenate, ParamSpec

import torch
from torch import Tensor

from longca.ops.band.config import BandKernel
from longca.ops.band.plan import BandPlan, DqTarget
from longca.ops.band.replay.launches import Launches
from longca.ops.band.triton.backward import backward_dkdv, backward_dq
from longca.ops.band.triton.forward import forward
from longca.ops.band.triton.preprocess import preprocess

P = ParamSpec("P")


def on_the_device_of_q(
    launch: Callable[Concatenate[Tensor, P], None],
) -> Callable[Concatenate[Tensor, P], None]:
    """Triton starts kernels on the current device, which need not be that of the tensors."""

    @wraps(launch)
    def run(q: Tensor, *others: P.args, **named: P.kwargs) -> None:
        with torch.cuda.device_of(q):
            launch(q, *others, **named)

    return run


@on_the_device_of_q
def launch_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: BandPlan,
    scale: float,
    *,
    out: Tensor,
    lse: Tensor,
    initial: tuple[Tensor, Tensor] | None,
    key: Hashable | None = None,
) -> None:
    """Writes `out` and `lse`, merged with the initial (out, LSE), which may be the same two tensors.

    Args:
        key: cache key of the launches in the plan's `calls`: all inputs of the launches except addresses.
    """
    if len(q) == 0:
        return
    if len(k) == 0:
        out.copy_(initial[0]) if initial else out.zero_()
        lse.copy_(initial[1]) if initial else lse.fill_(float("-inf"))
        return
    plan.calls.start(
        key, (q, k, v, out, lse, *(initial or ())), plan.tables, partial(start_forward, plan, scale)
    )


@on_the_device_of_q
def launch_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    dout: Tensor,
    dlse: Tensor | None,
    plan: BandPlan,
    scale: float,
    *,
    targets: Sequence[DqTarget],
    dk: Tensor,
    dv: Tensor,
    key: Hashable | None = None,
) -> None:
    """Writes the dQ of each target, `dk` and `dv`. `key` as above."""
    if len(q) == 0 or len(k) == 0:
        for target in targets:
            target.keep_initial()
        for grad in (dk, dv):
            grad.zero_()
        return
    tables = [table for some in (plan, *(target.plan for target in targets)) for table in some.tables]
    plan.calls.start(
        key,
        backward_inputs(q, k, v, out, lse, dout, dlse, targets, dk, dv),
        tables,
        partial(
            start_backward,
            plan,
            scale,
            dlse is not None,
            [(target.plan, target.initial is not None) for target in targets],
        ),
    )


def backward_inputs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    dout: Tensor,
    dlse: Tensor | None,
    targets: Sequence[DqTarget],
    dk: Tensor,
    dv: Tensor,
) -> list[Tensor]:
    """All tensors of a backward pass, in the order that `Calls` expects."""
    others = (dlse, *(x for target in targets for x in (target.dq, target.initial)))
    return [q, k, v, out, lse, dout, dk, dv, *(x for x in others if x is not None)]


def start_forward(
    plan: BandPlan,
    scale: float,
    launches: Launches,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    *initial: Tensor,
) -> None:
    """Starts the kernels of a forward call by `launches`."""
    schedule, config = plan.kernels[BandKernel.FORWARD]
    pack = config.block_m // schedule.tile_m
    run = forward
    if config.sm90:
        from longca.ops.band.sm90.launch import forward as run  # Gluon, which other GPUs need not support
    run(
        launches,
        q,
        k,
        v,
        schedule,
        scale,
        config,
        out=out,
        lse=lse,
        initial=(initial[0], initial[1]) if initial else None,
        packs_per_section=config.kv_heads_per_section * (q.shape[1] // k.shape[1]) // pack,
    )


def start_backward(
    plan: BandPlan,
    scale: float,
    has_dlse: bool,
    parts: Sequence[tuple[BandPlan, bool]],
    launches: Launches,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    dout: Tensor,
    dk: Tensor,
    dv: Tensor,
    *others: Tensor,
) -> None:
    """Starts the kernels of a backward call by `launches`.

    Args:
        parts: (plan, whether dQ is added to an initial one) of each target.
        others: dLSE, and dQ and the initial dQ of each target, if present.
    """
    rest = iter(others)
    dlse = next(rest) if has_dlse else None
    targets = [DqTarget(of, next(rest), next(rest) if has_initial else None) for of, has_initial in parts]
    dkdv_schedule, dkdv_config = plan.kernels[BandKernel.DKDV]
    dkdv_pack = dkdv_config.block_n // dkdv_schedule.tile_n
    stats = preprocess(launches, out, dout, lse, dlse, dkdv_pack, for_tma=dkdv_config.sm90)
    if BandKernel.DQ not in plan.kernels:
        from longca.ops.band.sm90.launch import backward_fused

        backward_fused(
            launches, q, k, v, dout, stats, dkdv_schedule, scale, dkdv_config, targets=targets, dk=dk, dv=dv
        )
        return
    run_dkdv = backward_dkdv
    if dkdv_config.sm90:
        from longca.ops.band.sm90.launch import backward_dkdv as run_dkdv
    with launches.stage():
        run_dkdv(launches, q, k, v, dout, stats, dkdv_schedule, scale, dkdv_config, dk=dk, dv=dv)
    dq_schedule, dq_config = plan.kernels[BandKernel.DQ]
    dq_pack = dq_config.block_m // dq_schedule.tile_m
    if dq_pack != dkdv_pack:
        stats = preprocess(launches, out, dout, lse, dlse, dq_pack)
    run_dq = backward_dq
    if dq_config.sm90:
        from longca.ops.band.sm90.launch import backward_dq as run_dq
    for target in targets:
        with launches.stage():
            run_dq(
                launches,
                q,
                k,
                v,
                dout,
                stats,
                target.plan.kernels[BandKernel.DQ][0],
                scale,
                dq_config,
                dq=target.dq,
                initial=target.initial,
                packs_per_section=dq_config.kv_heads_per_section * (q.shape[1] // k.shape[1]) // dq_pack,
            )


def backward_memory(
    q: Tensor, k: Tensor, v: Tensor, dtype: torch.dtype | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for (dq, dk, dv), by default in the inputs' dtype."""
    dq, dk, dv = (torch.empty(x.shape, dtype=dtype or x.dtype, device=x.device) for x in (q, k, v))
    return dq, dk, dv
