"""Attention by its definition in float64: what the tests compare kernels with."""

from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Plain:
    """Results in T × heads × D, LSE in T × heads; gradients of `dout`."""

    out: torch.Tensor
    lse: torch.Tensor
    grads: tuple[torch.Tensor, ...]


def plain_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dout: torch.Tensor,
    visible: np.ndarray,
    sinks: torch.Tensor | None = None,
) -> Plain:
    """Args:
    visible: bool (Sq, Sk), or (groups, Sq, Sk).
    sinks: a logit for each query head, whose gradient follows those of q, k and v.
    """
    num_heads = q.shape[1]
    num_kv_heads = k.shape[1]
    rasters = torch.from_numpy(np.array(visible, ndmin=3))
    given = (q, k, v) if sinks is None else (q, k, v, sinks)
    leaves = [x.detach().double().cpu().requires_grad_() for x in given]
    q, k, v = leaves[:3]
    outs = []
    lses = []
    for head in range(num_heads):
        kv_head = head * num_kv_heads // num_heads
        sees = rasters[kv_head * len(rasters) // num_kv_heads]
        weights = (q[:, head] @ k[:, kv_head].T / q.shape[-1] ** 0.5).exp() * sees
        total = weights.sum(1)
        if sinks is not None:
            total = total + leaves[3][head].exp()
        outs.append(weights / total.where(total > 0, 1)[:, None] @ v[:, kv_head])
        lses.append(total.log())
    out = torch.stack(outs, 1)
    return Plain(
        out.detach(), torch.stack(lses, 1).detach(), torch.autograd.grad(out, leaves, dout.double().cpu())
    )
