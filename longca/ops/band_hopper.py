"""Band attention on Hopper: what starts its kernels. Arguments as in `band_forward` and `band_backward`."""

import math

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from longca.ops.band_config import Tuned
from longca.ops.band_forward import _combine as combine
from longca.ops.band_hopper_forward import forward_kernel
from longca.ops.band_lines import Lines

ELEMENTS = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}
FORWARD = Tuned(rows=128, step=128, warps=4, stages=2)
FORWARD_BLOCKS = Tuned(rows=128, step=64, warps=4, stages=2)  # blocks of 64 keys: a tile is any two of them
FORWARD_NARROW = Tuned(rows=64, step=64, warps=4, stages=3)  # lines of at most 64 rows: two programs a multiprocessor


def forward(q: Tensor, k: Tensor, v: Tensor, lines: Lines, scale: float, tuned: Tuned, *, packs_at_once: int, out: Tensor,
            lse: Tensor, carried: tuple[Tensor, Tensor] | None = None, overlap: bool = False) -> None:
    """Writes `out` and `lse`. Rows that see no key: 0 and −inf.

    Args:
        lines: rows of queries, `tuned.rows` times the heads that share a tile of them, over steps of 64 or 128 keys.
        tuned: `rows` is 64 or 128; warps are the kernel's own affair.
        carried: (out float32, LSE) of other keys, to be merged with; may be `out` and `lse` themselves.
    """
    num_heads, head_dim, num_kv_heads = q.shape[1], q.shape[2], k.shape[1]
    teams, pack = tuned.rows // 64, tuned.rows // lines.tile
    packs, num_pieces = num_heads // pack, lines.pieces.shape[1]
    share_out = torch.empty(packs, lines.num_slots, tuned.rows, head_dim, dtype=torch.float32, device=q.device)
    share_lse = torch.empty(packs, lines.num_slots, tuned.rows, dtype=torch.float32, device=q.device)
    in_out, in_lse = carried if carried is not None else (out, lse)
    strides = out.stride(0), out.stride(1), lse.stride(0), lse.stride(1)
    packs_per_group = packs // len(lines.pieces)
    num_programs = min(packs * num_pieces, 2 // teams * torch.cuda.get_device_properties(q.device).multi_processor_count)
    if num_programs == 0:
        return
    taken = torch.zeros(1, dtype=torch.int32, device=q.device)
    forward_kernel[(num_programs,)](
        _boxes(q, 64 // pack, pack, head_dim), _boxes(k, lines.step, 1, 64), _boxes(v, lines.step, 1, 64), taken, lines.pieces, lines.runs,
        lines.shapes, out, lse, in_out, in_lse, share_out, share_lse, *strides, lines.num_slots, num_pieces, packs * num_pieces,
        packs_at_once, packs // num_kv_heads, packs_per_group, scale * math.log2(math.e), head_dim, pack, teams,
        2 if teams == 2 and lines.step == 64 else 1, carried is not None, overlap, tuned.stages, 24, num_warps=4,
        maxnreg=168 if teams == 2 else 128)
    if lines.num_slots:
        combine[(lines.splits.shape[1], packs, 4)](
            out, lse, in_out, in_lse, share_out, share_lse, lines.splits, lines.splits.shape[1], packs_per_group, lines.num_slots,
            *strides, carried is not None, head_dim, pack, lines.tile, tuned.rows // 4)


def _boxes(x: Tensor, tokens: int, heads: int, dims: int) -> TensorDescriptor:
    box = [tokens, heads, dims]
    return TensorDescriptor.from_tensor(x, box, gl.NVMMASharedLayout.get_default_for(box, ELEMENTS[x.dtype]))
