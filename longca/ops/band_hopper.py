"""Band attention on Hopper: what starts its kernels.

Shapes: T queries, S keys, H query heads, G KV heads, D head dim; q_THD, k_SGD, v_SGD, out_THD, lse_HT.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from longca.ops.band_hopper_forward import forward_kernel
from longca.ops.band_lines import Lines

LINE_ROWS = 128  # rows of the matrix that one program works on
ELEMENTS = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}


@dataclass(frozen=True)
class ForwardConfig:
    stages: int = 2
    ping_pong: bool = True  # the two warp groups take turns at the tensor cores
    pin: bool = True  # the softmax stays beside the product before it


def forward(q_THD: Tensor, k_SGD: Tensor, v_SGD: Tensor, lines: Lines, scale: float,
            config: ForwardConfig | None = None) -> tuple[Tensor, Tensor]:
    """(out_THD, lse_HT float32). `lines.tile` times the heads that share a tile is 128; no line is split."""
    config = config or ForwardConfig()
    assert lines.num_slots == 0
    seqlen, num_heads, _ = q_THD.shape
    kv_heads = k_SGD.shape[1]
    pack = LINE_ROWS // lines.tile
    num_groups, num_pieces, _ = lines.pieces.shape
    out_THD, lse_HT = torch.empty_like(q_THD), torch.empty(num_heads, seqlen, dtype=torch.float32, device=q_THD.device)
    packs_per_kv = num_heads // kv_heads // pack
    num_items = kv_heads * packs_per_kv * num_pieces
    num_programs = min(num_items, torch.cuda.get_device_properties(q_THD.device).multi_processor_count)
    forward_kernel[(num_programs,)](
        _boxes(q_THD, 64 // pack, pack), _boxes(k_SGD, lines.step, 1), _boxes(v_SGD, lines.step, 1),
        lines.pieces, lines.runs, lines.shapes, out_THD, lse_HT, lse_HT, lse_HT, out_THD.stride(0), out_THD.stride(1),
        seqlen, 0, num_pieces, num_items, packs_per_kv, kv_heads // num_groups, scale * math.log2(math.e),
        pack, config.ping_pong, config.pin, config.stages, num_warps=4, maxnreg=168)
    return out_THD, lse_HT


def _boxes(x_THD: Tensor, tokens: int, heads: int) -> TensorDescriptor:
    box = [tokens, heads, x_THD.shape[2]]
    return TensorDescriptor.from_tensor(x_THD, box, gl.NVMMASharedLayout.get_default_for(box, ELEMENTS[x_THD.dtype]))
