"""Attention over a dense mask in float64, by its definition: what strategies are compared with."""

import torch

from longca.masks.mask import Mask


def attention(
    mask: Mask,
    q_THD: torch.Tensor,
    k_TGD: torch.Tensor,
    v_TGD: torch.Tensor,
    dout_THD: torch.Tensor,
    sinks_H: torch.Tensor | None = None,
) -> dict[str, torch.Tensor]:
    """out, LSE, dq, dk, dv, and with sinks their gradient, in float64."""
    num_kv_heads = k_TGD.shape[1]
    given = (q_THD, k_TGD, v_TGD) if sinks_H is None else (q_THD, k_TGD, v_TGD, sinks_H)
    leaves = [x.double().requires_grad_() for x in given]
    ratio = q_THD.shape[1] // num_kv_heads
    q = leaves[0]
    k = leaves[1].repeat_interleave(ratio, 1)
    v = leaves[2].repeat_interleave(ratio, 1)
    visible = (
        torch.from_numpy(mask.dense()).to(q.device).reshape(mask.num_groups, mask.seqlen_q, mask.seqlen_k)
    )
    visible = visible.repeat_interleave(q_THD.shape[1] // mask.num_groups, 0)
    scores = torch.einsum("thd,shd->hts", q, k) * q.shape[-1] ** -0.5
    scores = torch.where(visible, scores, -torch.inf)
    if sinks_H is not None:
        sinks = torch.where(leaves[3] > -torch.inf, leaves[3], -torch.inf)  # no gradient where there is none
        scores = torch.cat([scores, sinks[:, None, None].expand(-1, len(q), 1)], -1)
    weights = scores.softmax(-1).nan_to_num(0.0)  # a row without keys is NaN: its result is 0
    weights = weights[..., : len(k)]
    out = torch.einsum("hts,shd->thd", weights, v)
    grads = torch.autograd.grad(out, leaves, dout_THD.double())
    lse = scores.detach().logsumexp(-1).T
    names = ("out", "lse", "dq", "dk", "dv", "dsinks")[: 2 + len(grads)]
    return dict(zip(names, (out.detach(), lse, *grads), strict=True))
