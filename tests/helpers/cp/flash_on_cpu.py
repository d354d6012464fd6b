"""FlashAttention's forward and backward by their definition, in float32 on CPU: what packages that know no
other kernel are tried over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from longca.cp.baselines import flash_attn_shim as flash_attn_stand_in

Window = tuple[int, int]


@contextmanager
def flash_on_cpu() -> Iterator[None]:
    """The stand-in for `flash_attn` computes on CPU."""
    with (
        patch.object(flash_attn_stand_in, "attend", attend),
        patch.object(flash_attn_stand_in, "gradients", gradients),
    ):
        yield


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bounds: tuple[Any, ...],
    causal: bool,
    window: Window,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    if q.dim() == 4:
        out, lse = attend(q[0], k[0], v[0], (None, None), causal, window, scale)
        return out[None], lse[None]
    scores, values = _scores(q, k, v, bounds, causal, window, scale)
    lse = scores.logsumexp(-1)
    return torch.einsum("hqk,khd->qhd", (scores - lse[..., None]).exp().nan_to_num(0.0), values).to(
        q.dtype
    ), lse


def gradients(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    bounds: tuple[Any, ...],
    causal: bool,
    window: Window,
    scale: float,
) -> tuple[torch.Tensor, ...]:
    if q.dim() == 4:
        grads = gradients(dout[0], q[0], k[0], v[0], out[0], lse[0], (None, None), causal, window, scale)
        return tuple(grad[None] for grad in grads)
    scores, values = _scores(q, k, v, bounds, causal, window, scale)
    weights = (scores - lse[..., None]).exp()
    dout = dout.float()
    delta = (dout * out).sum(-1).T[..., None]
    grad_scores = weights * (torch.einsum("qhd,khd->hqk", dout, values) - delta) * scale
    ratio = q.shape[1] // k.shape[1]
    dq = torch.einsum("hqk,khd->qhd", grad_scores, k.float().repeat_interleave(ratio, 1))
    dk = torch.einsum("hqk,qhd->khd", grad_scores, q.float())
    dv = torch.einsum("hqk,qhd->khd", weights, dout)
    return tuple(
        grad.to(q.dtype)
        for grad in (dq, dk.unflatten(1, (-1, ratio)).sum(2), dv.unflatten(1, (-1, ratio)).sum(2))
    )


def _scores(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bounds: tuple[Any, ...],
    causal: bool,
    window: Window,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(H, Sq, Sk) with −inf where hidden, and the values of each query head. In a segment the last query
    meets the last key."""
    ratio = q.shape[1] // k.shape[1]
    scores = torch.einsum("qhd,khd->hqk", q.float(), k.float().repeat_interleave(ratio, 1)) * scale
    left = window[0]
    right = 0 if causal else window[1]
    visible = torch.zeros(scores.shape[1:], dtype=torch.bool)
    of_q, of_k = (
        [0, x.shape[0]] if bound is None else bound.tolist()
        for x, bound in zip((q, k), bounds[:2], strict=True)
    )
    for q0, q1, k0, k1 in zip(of_q, of_q[1:], of_k, of_k[1:], strict=False):
        offset = torch.arange(k0 - k1, 0) - torch.arange(q0 - q1, 0)[:, None]
        visible[q0:q1, k0:k1] = (offset >= -left if left >= 0 else True) & (
            offset <= right if right >= 0 else offset == offset
        )
    return scores.masked_fill(~visible, -torch.inf), v.float().repeat_interleave(ratio, 1)
