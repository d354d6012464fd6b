"""A kernel that merges attention results over disjoint keys by their LSEs in one pass: as
`longca.cp.runtime.accumulate.merge`, for GPUs.

Shapes: n queries, H heads, D head dim.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from longca.ops.band.replay.launches import Launches

ROWS = 16  # of a program: a query of a head each


# strides of the part are multiples of 16, so that builds differ by its dtype alone: `longca.ops.band.builds`
@triton.jit(do_not_specialize=["num_rows", "num_heads", "part_lse_token", "part_lse_head"])
def _merge(
    out_ptr,
    lse_ptr,
    part_ptr,
    part_lse_ptr,
    num_rows,
    num_heads,
    part_token,
    part_head,
    part_lse_token,
    part_lse_head,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):
    row, dim = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    token, head = row // num_heads, row % num_heads
    inside = row < num_rows
    lse = tl.load(lse_ptr + row, mask=inside, other=float("-inf"))
    part_lse = tl.load(
        part_lse_ptr + token * part_lse_token + head * part_lse_head, mask=inside, other=float("-inf")
    ).to(tl.float32)
    part_lse = tl.where(part_lse == float("inf"), float("-inf"), part_lse)
    shift = tl.maximum(lse, part_lse)
    shift = tl.where(shift == float("-inf"), 0.0, shift)
    new = tl.exp(part_lse - shift)
    total = tl.exp(lse - shift) + new
    some = tl.where(total > 0, total, 1.0)
    weight = tl.where(new > 0, new / some, 0.0)
    inside_dims = inside[:, None] & (dim < D)[None, :]
    offset = row[:, None] * D + dim[None, :]
    out = tl.load(out_ptr + offset, mask=inside_dims, other=0.0)
    part = tl.load(
        part_ptr + (token * part_token + head * part_head)[:, None] + dim[None, :],
        mask=inside_dims,
        other=0.0,
    ).to(tl.float32)
    tl.store(out_ptr + offset, out + weight[:, None] * (part - out), mask=inside_dims)
    tl.store(lse_ptr + row, tl.where(total > 0, shift + tl.log(some), float("-inf")), mask=inside)


def merge_parts(
    out_nHD: Tensor, lse_nH: Tensor, part_nHD: Tensor, part_lse_nH: Tensor, launches: Launches | None = None
) -> None:
    """Merges the part into (out, LSE), float32 and contiguous, in place. LSEs of rows without keys: −inf, in
    the part also +inf.

    Args:
        launches: starts the kernel, or lists it.
    """
    assert (
        out_nHD.is_contiguous() and lse_nH.is_contiguous() and out_nHD.dtype == lse_nH.dtype == torch.float32
    )
    part = part_nHD if part_nHD.stride(2) == 1 else part_nHD.contiguous()
    num_rows = lse_nH.numel()
    head_dim = out_nHD.shape[2]
    if num_rows:
        (launches or Launches(out_nHD.device)).launch(
            _merge,
            (triton.cdiv(num_rows, ROWS),),
            out_nHD,
            lse_nH,
            part,
            part_lse_nH,
            num_rows,
            lse_nH.shape[1],
            part.stride(0),
            part.stride(1),
            part_lse_nH.stride(0),
            part_lse_nH.stride(1),
            head_dim,
            triton.next_power_of_2(head_dim),
            ROWS,
        )
