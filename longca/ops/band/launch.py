"""What starts the kernels of band attention: the one place that chooses among them. No checks, and nothing that waits for the GPU.

Shapes: q, out, dout (Tq, H, D), k and v (Tk, G, D), LSE (Tq, H).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Concatenate, NamedTuple, ParamSpec

import torch
from torch import Tensor

from longca.ops.band.config import Tuned, Use
from longca.ops.band.plan import UNIT
from longca.ops.band.tables.schedule import Lines
from longca.ops.band.triton.backward import keys_gradients, queries_gradient
from longca.ops.band.triton.forward import forward
from longca.ops.band.triton.preprocess import prepare

Kernels = Mapping[Use, tuple[Lines, Tuned]]
P = ParamSpec("P")


class Part(NamedTuple):
    """Where dq of some queries goes."""

    kernels: Kernels
    units: Tensor | None
    """the first of each 128 of these queries; None for all queries"""
    dq: Tensor
    carried: Tensor | None = None
    """float32, strided as `dq`, which it may be: what these rows are added to"""

    def keep(self) -> None:
        """What there is without keys: that which is carried, or 0."""
        tokens = torch.arange(len(self.dq), device=self.dq.device)
        if self.units is not None:
            tokens = tokens[torch.isin(tokens // UNIT, self.units // UNIT)]
        self.dq[tokens] = 0 if self.carried is None else self.carried[tokens].to(self.dq.dtype)


def on_the_device_of_q(launch: Callable[Concatenate[Tensor, P], None]) -> Callable[Concatenate[Tensor, P], None]:
    """Triton starts kernels on the current device, which need not be that of the tensors."""
    @wraps(launch)
    def run(q: Tensor, *others: P.args, **named: P.kwargs) -> None:
        with torch.cuda.device_of(q):
            launch(q, *others, **named)

    return run


@on_the_device_of_q
def launch_forward(q: Tensor, k: Tensor, v: Tensor, kernels: Kernels, scale: float, *, out: Tensor, lse: Tensor,
                   carried: tuple[Tensor, Tensor] | None) -> None:
    """Writes `out` and `lse`; `carried` may be the same two tensors."""
    if len(q) == 0:
        return
    if len(k) == 0:
        out.copy_(carried[0]) if carried else out.zero_()
        lse.copy_(carried[1]) if carried else lse.fill_(float("-inf"))
        return
    lines, tuned = kernels[Use.FORWARD]
    pack, run = tuned.rows // lines.tile, forward
    if tuned.hopper:
        from longca.ops.band.sm90.launch import forward as run  # a language of its own, which other GPUs need not have
    run(q, k, v, lines, scale, tuned, out=out, lse=lse, carried=carried,
        packs_at_once=tuned.at_once * (q.shape[1] // k.shape[1]) // pack)


@on_the_device_of_q
def launch_backward(q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dout: Tensor, dlse: Tensor | None, kernels: Kernels,
                    scale: float, *, parts: Sequence[Part], dk: Tensor, dv: Tensor) -> None:
    """Writes dq part by part, `dk` and `dv`."""
    if len(q) == 0 or len(k) == 0:
        for part in parts:
            part.keep()
        for grad in (dk, dv):
            grad.zero_()
        return
    key_lines, key_tuned = kernels[Use.KEYS]
    key_pack = key_tuned.step // key_lines.step
    stats = prepare(out, dout, lse, dlse, key_pack)
    if Use.QUERIES not in kernels:
        from longca.ops.band.sm90.launch import gradients

        gradients(q, k, v, dout, *stats, key_lines, scale, key_tuned, parts=parts, dk=dk, dv=dv)
        return
    run_keys = keys_gradients
    if key_tuned.hopper:
        from longca.ops.band.sm90.launch import keys_gradients as run_keys
    run_keys(q, k, v, dout, *stats, key_lines, scale, key_tuned, dk=dk, dv=dv)
    query_lines, query_tuned = kernels[Use.QUERIES]
    query_pack = query_tuned.rows // query_lines.tile
    if query_pack != key_pack:
        stats = prepare(out, dout, lse, dlse, query_pack)
    run_queries = queries_gradient
    if query_tuned.hopper:
        from longca.ops.band.sm90.launch import queries_gradient as run_queries
    for part in parts:
        run_queries(q, k, v, dout, *stats, part.kernels[Use.QUERIES][0], scale, query_tuned, dq=part.dq, carried=part.carried,
                    packs_at_once=query_tuned.at_once * (q.shape[1] // k.shape[1]) // query_pack)


def backward_memory(q: Tensor, k: Tensor, v: Tensor, dtype: torch.dtype | None) -> tuple[Tensor, Tensor, Tensor]:
    """Room for (dq, dk, dv), by default in the inputs' dtype."""
    dq, dk, dv = (torch.empty(x.shape, dtype=dtype or x.dtype, device=x.device) for x in (q, k, v))
    return dq, dk, dv
