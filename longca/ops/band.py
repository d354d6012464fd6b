"""Band attention: exact attention for any list of bands and any block-sparse mask, forward and backward."""

import torch

from longca.ops.band_backward import keys_gradients, prepare, queries_gradient
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


def band_backward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor, dout: torch.Tensor,
                  plan: BandPlan, scale: float | None = None, *,
                  grad_dtype: torch.dtype | None = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(dq, dk, dv) from an output and LSE that may cover more keys than these."""
    scale = plan.head_dim ** -0.5 if scale is None else scale
    dq, dk, dv = (torch.empty(x.shape, dtype=grad_dtype or x.dtype, device=x.device) for x in (q, k, v))
    (key_lines, key_tuned), (query_lines, query_tuned) = plan.kernels[Use.KEYS], plan.kernels[Use.QUERIES]
    key_pack, query_pack = key_tuned.step // key_lines.step, query_tuned.rows // query_lines.tile
    stats = prepare(out, dout, lse, key_pack)
    keys_gradients(q, k, v, dout, *stats, key_lines, scale, key_tuned, kv_heads_at_once=plan.num_kv_heads, dk=dk, dv=dv)
    if query_pack != key_pack:
        stats = prepare(out, dout, lse, query_pack)
    queries_gradient(q, k, v, dout, *stats, query_lines, scale, query_tuned, dq=dq,
                     packs_at_once=plan.kv_heads_at_once * (plan.num_q_heads // plan.num_kv_heads) // query_pack)
    return dq, dk, dv
