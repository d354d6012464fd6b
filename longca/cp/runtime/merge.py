"""Attention over keys that come in parts: results over disjoint keys put together by their log-sum-exps.

Running results are in float32 or better, whatever the parts are in: in bfloat16 their error would grow with the number of parts.
Shapes: L queries, H heads, D head dim.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def no_keys(q_LHD: torch.Tensor, dtype: torch.dtype | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, LSE) of these queries over no keys at all: 0 and −inf. To merge into; float32 unless told otherwise."""
    import torch

    dtype = dtype or torch.float32
    lse = torch.full(q_LHD.shape[:2], -torch.inf, dtype=dtype, device=q_LHD.device)
    return torch.zeros(q_LHD.shape, dtype=dtype, device=q_LHD.device), lse


def merge(out_LHD: torch.Tensor, lse_LH: torch.Tensor, part_LHD: torch.Tensor, part_lse_LH: torch.Tensor) -> None:
    """Merges the part into (out, LSE), in place.

    A row without keys has output 0 and LSE −inf, on both sides and in the result; in the part its LSE may be +inf too, which some
    kernels write. No row becomes NaN.
    """
    import torch

    if out_LHD.is_cuda:
        from longca.ops.merge import merge_parts

        merge_parts(out_LHD, lse_LH, part_LHD, part_lse_LH)
        return

    part_lse = part_lse_LH.to(lse_LH.dtype)
    part_lse = part_lse.masked_fill(part_lse == torch.inf, -torch.inf)
    base = torch.maximum(lse_LH, part_lse)
    base = base.masked_fill(base == -torch.inf, 0.0)  # −inf minus −inf would be NaN
    kept, new = (lse_LH - base).exp(), (part_lse - base).exp()
    total = kept + new
    share = new / total.masked_fill(total == 0, 1.0)
    out_LHD.lerp_(part_LHD.to(out_LHD.dtype), share[..., None])
    torch.add(base, total.log(), out=lse_LH)
