"""What the Hopper kernels of band attention are checked on, and what is right."""

import torch

from longca.lowering.dense import dense_mask
from longca.masks import build_mask
from longca.masks.band import make
from longca.masks.mask import Mask

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def inputs(num_q: int, num_k: int, heads: int, kv_heads: int, head_dim: int = 128) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = (num_q, heads), (num_k, kv_heads), (num_k, kv_heads), (num_q, heads)
    return [torch.randn(*shape, head_dim, device=DEVICE, dtype=torch.bfloat16) for shape in shapes]


def checks() -> list[tuple[Mask, int, int, int]]:
    """(mask, query heads, KV heads, head dim)."""
    ragged = Mask(300, 777, (make([0, 100], [90, 300], [0, 5], [700, 777], [-20, -(1 << 40)], [300, 400]),), name="ragged with empty rows")
    names = "full", "causal", "causal_document", "prefix_lm_document", "shared_question", "causal_blockwise"
    small = [ragged, *(build_mask(name, seqlen=1500) for name in names), build_mask("sliding_window", seqlen=1000, window=70),
             build_mask("global_sliding_window", seqlen=3000, num_global=100, window=200), build_mask("causal", seqlen=1)]
    blocks = [(build_mask("block_sparse_uniform", seqlen=2048, num_kv_heads=g, block=b), h, g, 128)
              for b, h, g in ((64, 16, 2), (128, 16, 2), (64, 4, 4))]
    variable = build_mask("block_sparse_variable", seqlen=2000, num_kv_heads=2)
    # steps that begin anywhere, with few heads in them
    odd = [(build_mask(name, seqlen=1501, num_kv_heads=kv_heads), heads, kv_heads, 128)
           for name in ("causal", "causal_document", "block_sparse_variable") for heads, kv_heads in ((4, 4), (6, 2), (12, 6))]
    odd += [(build_mask("sliding_window", seqlen=1003, window=70), 3, 3, 128), (build_mask("shared_question", seqlen=1501), 12, 6, 128)]
    return [*((mask, 8, 1, 128) for mask in small), *blocks, (variable, 8, 2, 128), (small[2], 16, 1, 128),
            (small[2], 3, 3, 128), (small[3], 6, 3, 128), (small[2], 8, 2, 64), *odd]


def reference(q, k, v, dout, mask: Mask) -> list[torch.Tensor]:
    """(out, LSE, dq, dk, dv) in float64, head by head."""
    results = [torch.zeros(x.shape, dtype=torch.float64, device=q.device) for x in (q, q[..., 0], q, k, v)]
    seen = dense_mask(mask, q.device)
    seen = seen[None] if seen.ndim == 2 else seen
    scale = q.shape[2] ** -0.5
    for head in range(q.shape[1]):
        kv = head // (q.shape[1] // k.shape[1])
        q64, k64, v64, dout64 = q[:, head].double(), k[:, kv].double(), v[:, kv].double(), dout[:, head].double()
        scores = (q64 @ k64.T * scale).masked_fill(~seen[kv * mask.num_groups // k.shape[1]], -torch.inf)
        lse = torch.logsumexp(scores, 1)
        weights = torch.exp(scores - torch.where(lse.isinf(), 0.0, lse)[:, None])
        out = weights @ v64
        dscores = weights * (dout64 @ v64.T - (out * dout64).sum(1)[:, None]) * scale
        results[0][:, head], results[1][:, head], results[2][:, head] = out, lse, dscores @ k64
        results[3][:, kv] += dscores.T @ q64
        results[4][:, kv] += weights.T @ dout64
    return results
