"""Learnable sinks of attention: a logit for each query head, which takes part in the softmax of each row and
has the value 0.

A sink adds exp(sink) to the sum of a row. So it joins after the last merge of partial results, and no kernel
knows of it:

    lse' = log(exp(lse) + exp(sink))    out' = out · exp(lse − lse')

The backward of any kernel is right for (out', lse'). The gradient of a sink is
Σ exp(sink − lse') · (dlse' − dout·out') over rows. A row without keys has out' = 0 and lse' = sink.

Shapes: T queries, H query heads, D head dim.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
# of out at a time for the gradient, which needs them in float32
MOST_ELEMENTS = {"cpu": 1 << 18, "cuda": 1 << 26}


def join_sinks(out_THD: Tensor, lse_TH: Tensor, sinks_H: Tensor) -> tuple[Tensor, Tensor]:
    """(out', LSE') of attention with sinks, from those over all keys, in new tensors of the same dtypes;
    without autograd.

    Args:
        lse_TH: natural log; −inf in rows without keys, whose out is 0.
    """
    sinks = sinks_H.detach().to(lse_TH.dtype)
    share = torch.sigmoid(lse_TH - sinks).masked_fill_(lse_TH == -math.inf, 0.0)  # of the keys in the softmax
    out = torch.empty_like(out_THD)
    torch.mul(out_THD.detach(), share.unsqueeze(-1), out=out)  # one pass, rounded once
    return out, torch.logaddexp(lse_TH, sinks)


def sinks_gradient(
    out_THD: Tensor, lse_TH: Tensor, dout_THD: Tensor | None, dlse_TH: Tensor | None, sinks_H: Tensor
) -> Tensor:
    """The gradient of the sinks, (H,) in the dtype of the LSE: the sum over these rows, in an order that does
    not change.

    Args:
        out_THD, lse_TH: with the sinks, from `join_sinks`.
        dout_THD, dlse_TH: gradients by them; None for zeros.
    """
    exact = lse_TH.dtype
    sinks = sinks_H.to(exact)
    total = torch.zeros_like(sinks)
    most = MOST_ELEMENTS.get(out_THD.device.type, MOST_ELEMENTS["cuda"])
    step = max(most // max(out_THD[:1].numel(), 1), 1)
    for start in range(0, len(out_THD), step):
        rows = slice(start, start + step)
        lse = lse_TH[rows]
        share = torch.exp(sinks - lse).masked_fill_(lse == sinks, 1.0)  # of the sink in the softmax
        share.masked_fill_(sinks == -math.inf, 0.0)
        if dout_THD is not None:
            delta = (dout_THD[rows].to(exact) * out_THD[rows]).sum(-1)
            total -= (share * delta).sum(0)
        if dlse_TH is not None:
            total += (share * dlse_TH[rows]).sum(0)
    return total


@torch.library.custom_op("longca::sinks_gradient", mutates_args=())
def sinks_gradient_op(
    out_THD: Tensor, lse_TH: Tensor, dout_THD: Tensor | None, dlse_TH: Tensor | None, sinks_H: Tensor
) -> Tensor:
    """`sinks_gradient` in the dtype of the sinks, for torch.compile: the number of its steps depends on
    T."""
    return sinks_gradient(out_THD, lse_TH, dout_THD, dlse_TH, sinks_H).to(sinks_H.dtype)


@sinks_gradient_op.register_fake
def _(
    out_THD: Tensor, lse_TH: Tensor, dout_THD: Tensor | None, dlse_TH: Tensor | None, sinks_H: Tensor
) -> Tensor:
    return torch.empty_like(sinks_H)


def unfit_sinks(sinks: Any, num_q_heads: int, device: torch.device) -> tuple[str, str] | None:
    """(the reason why these cannot be the sinks of a call, what to do); None if they can."""
    if not isinstance(sinks, Tensor):
        return f"sinks must be a tensor, and it is {type(sinks).__name__}", "torch.as_tensor(x) makes one"
    if sinks.shape != (num_q_heads,):
        return (
            f"sinks must be ({num_q_heads},), a logit for each query head, and it is {tuple(sinks.shape)}",
            "sinks.flatten() makes one dimension" if sinks.numel() == num_q_heads else "Give as many logits",
        )
    if sinks.dtype not in DTYPES:
        return (
            f"sinks must be bf16, fp16, float32 or float64, and it is {sinks.dtype}",
            "Convert it with .to(dtype)",
        )
    if sinks.device != device:
        return (
            f"sinks must be on {device}, where q is, and it is on {sinks.device}",
            "Move it with .to(device)",
        )
    return None
