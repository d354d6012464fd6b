"""Makes random inputs, and computes attention with its gradients in float64: the reference of band
attention's benchmarks."""

import torch

from longca.lowering.dense import dense_mask
from longca.masks.mask import Mask

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def inputs(num_q: int, num_k: int, heads: int, kv_heads: int, head_dim: int = 128) -> list[torch.Tensor]:
    """Returns q, k, v and dout of standard normal values, (tokens, heads, head dim) in bf16."""
    torch.manual_seed(0)
    shapes = (num_q, heads), (num_k, kv_heads), (num_k, kv_heads), (num_q, heads)
    return [torch.randn(*shape, head_dim, device=DEVICE, dtype=torch.bfloat16) for shape in shapes]


def reference(q, k, v, dout, mask: Mask) -> list[torch.Tensor]:
    """Computes (out, LSE, dq, dk, dv) in float64, head by head."""
    results = [torch.zeros(x.shape, dtype=torch.float64, device=q.device) for x in (q, q[..., 0], q, k, v)]
    seen = dense_mask(mask, q.device)
    seen = seen[None] if seen.ndim == 2 else seen
    scale = q.shape[2] ** -0.5
    for head in range(q.shape[1]):
        kv = head // (q.shape[1] // k.shape[1])
        q64, k64, v64, dout64 = (
            q[:, head].double(),
            k[:, kv].double(),
            v[:, kv].double(),
            dout[:, head].double(),
        )
        scores = (q64 @ k64.T * scale).masked_fill(~seen[kv * mask.num_groups // k.shape[1]], -torch.inf)
        lse = torch.logsumexp(scores, 1)
        weights = torch.exp(scores - torch.where(lse.isinf(), 0.0, lse)[:, None])
        out = weights @ v64
        dscores = weights * (dout64 @ v64.T - (out * dout64).sum(1)[:, None]) * scale
        results[0][:, head], results[1][:, head], results[2][:, head] = out, lse, dscores @ k64
        results[3][:, kv] += dscores.T @ q64
        results[4][:, kv] += weights.T @ dout64
    return results
