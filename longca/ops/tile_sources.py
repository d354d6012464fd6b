"""Loads of row tiles in Triton kernels: by Hopper's tensor memory accelerator (TMA), or by pointers."""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


def tile_source(x: torch.Tensor, tile: int, by_tma: bool) -> torch.Tensor | TensorDescriptor:
    """The source from which a kernel reads tiles of a (heads, T, D): a TMA descriptor, or the tensor itself.
    Rows are contiguous.

    Triton turns descriptors into pointers on GPUs without the accelerator.
    """
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [1, tile, x.shape[2]]) if by_tma else x


@triton.jit
def load_tile(
    source,
    head,
    row0,
    row_stride,
    seqlen,
    TILE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WHOLE: tl.constexpr,
    BY_TMA: tl.constexpr,
):
    """Loads (TILE, HEAD_DIM) from row0 of a head on; zeros past its end, if WHOLE does not promise that there
    is none.

    Args:
        source: a descriptor, or a pointer to where the head starts.
    """
    if BY_TMA:
        tile = source.load([head, row0, 0]).reshape(TILE, HEAD_DIM)
    else:
        rows = tl.arange(0, TILE)
        pointers = (
            source
            + row0.to(tl.int64) * row_stride
            + (rows[:, None] * row_stride + tl.arange(0, HEAD_DIM)[None, :])
        )
        tile = (
            tl.load(pointers) if WHOLE else tl.load(pointers, mask=(row0 + rows)[:, None] < seqlen, other=0.0)
        )
    return tile
