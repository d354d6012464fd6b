"""Band attention: exact attention for any list of bands and any block-sparse mask, forward and backward."""

import torch

from longca.ops.band_config import Use
from longca.ops.band_forward import forward
from longca.ops.band_plan import BandPlan


def band_forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: BandPlan, scale: float | None = None, *,
                 carried: tuple[torch.Tensor, torch.Tensor] | None = None,
                 out_dtype: torch.dtype | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """(out (Tq, H, D), LSE (Tq, H) float32)."""
    lines, tuned = plan.kernels[Use.FORWARD]
    pack = tuned.rows // lines.tile
    out = torch.empty(q.shape, dtype=out_dtype or q.dtype, device=q.device)
    lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    forward(q, k, v, lines, plan.head_dim ** -0.5 if scale is None else scale, tuned, out=out, lse=lse, carried=carried,
            packs_at_once=plan.kv_heads_at_once * (plan.num_q_heads // plan.num_kv_heads) // pack)
    return out, lse
