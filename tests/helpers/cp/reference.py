"""Attention over a dense mask in float64, by its definition: what strategies are compared with."""

import torch

from longca.masks.mask import Mask


def attention(
    mask: Mask, q_THD: torch.Tensor, k_TGD: torch.Tensor, v_TGD: torch.Tensor, dout_THD: torch.Tensor
) -> dict[str, torch.Tensor]:
    """out, LSE, dq, dk and dv in float64."""
    num_kv_heads = k_TGD.shape[1]
    leaves = [x.double().requires_grad_() for x in (q_THD, k_TGD, v_TGD)]
    ratio = q_THD.shape[1] // num_kv_heads
    q = leaves[0]
    k = leaves[1].repeat_interleave(ratio, 1)
    v = leaves[2].repeat_interleave(ratio, 1)
    visible = (
        torch.from_numpy(mask.dense()).to(q.device).reshape(mask.num_groups, mask.seqlen_q, mask.seqlen_k)
    )
    visible = visible.repeat_interleave(q_THD.shape[1] // mask.num_groups, 0)
    scores = torch.einsum("thd,shd->hts", q, k) * q.shape[-1] ** -0.5
    weights = (
        torch.where(visible, scores, -torch.inf).softmax(-1).nan_to_num(0.0)
    )  # a row without keys is NaN: its result is 0
    out = torch.einsum("hts,shd->thd", weights, v)
    grads = torch.autograd.grad(out, leaves, dout_THD.double())
    lse = scores.detach().masked_fill(~visible, -torch.inf).logsumexp(-1).T
    return dict(zip(("out", "lse", "dq", "dk", "dv"), (out.detach(), lse, *grads), strict=True))
