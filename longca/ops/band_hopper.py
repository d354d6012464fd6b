"""Band attention on Hopper: what starts its kernels. Shapes as in `band_forward`."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from longca.ops.band_forward import _combine as combine
from longca.ops.band_hopper_forward import forward_kernel
from longca.ops.band_lines import Lines

LINE_ROWS = 128  # rows of the score matrix that one program works on
ELEMENTS = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}


@dataclass(frozen=True)
class ForwardConfig:
    stages: int = 2
    ping_pong: bool = True  # the two warp groups take turns at the tensor cores
    pin: bool = True  # the softmax stays beside the product before it


def forward(q: Tensor, k: Tensor, v: Tensor, lines: Lines, scale: float, config: ForwardConfig, *, packs_at_once: int, out: Tensor,
            lse: Tensor, carried: tuple[Tensor, Tensor] | None = None) -> None:
    """Writes `out` and `lse`. Rows that see no key: 0 and −inf.

    Args:
        lines: rows of queries; `lines.tile` times the heads that share a tile is 128.
        carried: (out float32, LSE) of other keys, to be merged with; may be `out` and `lse` themselves.
    """
    num_heads, head_dim, kv_heads = q.shape[1], q.shape[2], k.shape[1]
    pack = LINE_ROWS // lines.tile
    packs, num_pieces = num_heads // pack, lines.pieces.shape[1]
    share_out = torch.empty(packs, lines.num_slots, LINE_ROWS, head_dim, dtype=torch.float32, device=q.device)
    share_lse = torch.empty(packs, lines.num_slots, LINE_ROWS, dtype=torch.float32, device=q.device)
    in_out, in_lse = carried if carried is not None else (out, lse)
    strides = out.stride(0), out.stride(1), lse.stride(0), lse.stride(1)
    packs_per_group = packs // len(lines.pieces)
    num_programs = min(packs * num_pieces, torch.cuda.get_device_properties(q.device).multi_processor_count)
    if num_programs == 0:
        return
    forward_kernel[(num_programs,)](
        _boxes(q, LINE_ROWS // 2 // pack, pack), _boxes(k, lines.step, 1), _boxes(v, lines.step, 1), lines.pieces, lines.runs,
        lines.shapes, out, lse, in_out, in_lse, share_out, share_lse, *strides, lines.num_slots, num_pieces, packs * num_pieces,
        packs_at_once, packs // kv_heads, packs_per_group, scale * math.log2(math.e), pack, carried is not None, config.ping_pong,
        config.pin, config.stages, num_warps=4, maxnreg=168)
    if lines.num_slots:
        combine[(lines.splits.shape[1], packs, 4)](
            out, lse, in_out, in_lse, share_out, share_lse, lines.splits, lines.splits.shape[1], packs_per_group, lines.num_slots,
            *strides, carried is not None, head_dim, pack, lines.tile, LINE_ROWS // 4)


def _boxes(x: Tensor, tokens: int, heads: int) -> TensorDescriptor:
    box = [tokens, heads, x.shape[2]]
    return TensorDescriptor.from_tensor(x, box, gl.NVMMASharedLayout.get_default_for(box, ELEMENTS[x.dtype]))
