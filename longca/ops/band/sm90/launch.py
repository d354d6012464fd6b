"""Band attention on Hopper: what starts its kernels. Shapes as in `triton.forward`, tables as in `tables.schedule`."""

import math
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from longca.ops.band.config import Tuned
from longca.ops.band.plan import UNIT
from longca.ops.band.sm90.bwd_dkdv import backward_kernel
from longca.ops.band.sm90.bwd_dq import queries_kernel
from longca.ops.band.sm90.bwd_fused import fused_kernel
from longca.ops.band.sm90.forward import forward_kernel
from longca.ops.band.tables.schedule import Lines
from longca.ops.band.triton.backward import _add as add_shares
from longca.ops.band.triton.forward import _combine as combine

if TYPE_CHECKING:
    from longca.ops.band.launch import Part  # which starts what is here

ELEMENTS = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16, torch.float32: gl.float32}
LOG2_E = math.log2(math.e)


def forward(q: Tensor, k: Tensor, v: Tensor, lines: Lines, scale: float, tuned: Tuned, *, packs_at_once: int, out: Tensor,
            lse: Tensor, carried: tuple[Tensor, Tensor] | None = None) -> None:
    """Writes `out` and `lse`. Rows that see no key: 0 and −inf.

    Args:
        lines: rows of queries: `tuned.rows`, 64 or 128, over the heads that share a tile. Steps of 64 keys, or for 128 rows also of 128.
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
    num_programs = min(packs * num_pieces, 2 // teams * _processors(q))  # one team takes half a multiprocessor
    if num_programs == 0:
        return
    forward_kernel[(num_programs,)](
        _boxes(q, 64 // pack, pack, head_dim), _boxes(k, lines.step, 1, 64), _boxes(v, lines.step, 1, 64),
        torch.zeros(1, dtype=torch.int32, device=q.device), lines.pieces, lines.runs, lines.shapes, out, lse, in_out, in_lse, share_out,
        share_lse, *strides, lines.num_slots, num_pieces, packs * num_pieces, packs_at_once, packs // num_kv_heads, packs_per_group,
        scale * LOG2_E, head_dim, pack, teams, 128 // lines.step if teams == 2 else 1, carried is not None, tuned.hopper == 2,
        2 if teams == 2 else 3, num_warps=4, maxnreg=168 if teams == 2 else 128)
    if lines.num_slots:
        combine[(lines.splits.shape[1], packs, 4)](
            out, lse, in_out, in_lse, share_out, share_lse, lines.splits, lines.splits.shape[1], packs_per_group, lines.num_slots,
            *strides, carried is not None, head_dim, pack, lines.tile, tuned.rows // 4)


def keys_gradients(q: Tensor, k: Tensor, v: Tensor, dout: Tensor, base: Tensor, delta: Tensor, lines: Lines, scale: float, tuned: Tuned,
                   *, dk: Tensor, dv: Tensor) -> None:
    """Writes `dk` and `dv`.

    Args:
        base, delta: of `band_statistics.prepare`, with as many heads in a pack as share a step.
        lines: of 128 keys, in steps of 64 rows over these heads.
    """
    tiles, numbers = _backward_inputs(q, k, v, dout, base, delta, lines)
    num_kv_heads, head_dim, num_pieces = k.shape[1], k.shape[2], lines.pieces.shape[1]
    num_items = num_kv_heads * num_pieces
    shares = torch.empty(2, num_kv_heads, lines.num_slots, lines.tile, head_dim, dtype=torch.float32, device=q.device)
    strides = dk.stride(0), dk.stride(1), dv.stride(0), dv.stride(1)
    backward_kernel[(min(num_items, _processors(q)),)](
        *tiles, torch.zeros(1, dtype=torch.int32, device=q.device), lines.pieces, lines.runs, lines.shapes, dk, dv, *shares, *strides,
        lines.num_slots, num_pieces, num_items, tuned.at_once, *numbers, scale, scale * LOG2_E, 64 // lines.step, tuned.stages, num_warps=4,
        maxnreg=168)
    for x, share in zip((dk, dv), shares, strict=True):
        add_shares(x, share, lines, 1)


def queries_gradient(q: Tensor, k: Tensor, v: Tensor, dout: Tensor, base: Tensor, delta: Tensor, lines: Lines, scale: float, tuned: Tuned,
                     *, packs_at_once: int, dq: Tensor, carried: Tensor | None = None) -> None:
    """Writes `dq`.

    Args:
        carried: float32, strided as `dq`, which it may be: what this is added to.
        base, delta: of `band_statistics.prepare`, with as many heads in a pack as share a tile.
        lines: of 128 rows over these heads, in steps of 64 keys.
    """
    assert tuned.rows == 128, "of two warp groups"
    pack, packs, head_dim, num_pieces = base.shape[2], base.shape[0], q.shape[2], lines.pieces.shape[1]
    share = torch.empty(packs, lines.num_slots, tuned.rows, head_dim, dtype=torch.float32, device=q.device)
    queries_kernel[(min(packs * num_pieces, _processors(q)),)](
        _boxes(q, 64 // pack, pack, head_dim), _boxes(dout, 64 // pack, pack, head_dim), _boxes(k, 64, 1, head_dim),
        _boxes(v, 64, 1, head_dim), torch.zeros(1, dtype=torch.int32, device=q.device), lines.pieces, lines.runs, lines.shapes, base, delta,
        dq, dq if carried is None else carried, share, dq.stride(0), dq.stride(1), lines.num_slots, num_pieces, packs * num_pieces,
        packs_at_once, packs // k.shape[1], packs // len(lines.pieces), base.shape[1], scale, scale * LOG2_E, pack, carried is not None,
        tuned.stages, num_warps=4, maxnreg=168)
    add_shares(dq, share, lines, pack, carried)


def gradients(q: Tensor, k: Tensor, v: Tensor, dout: Tensor, base: Tensor, delta: Tensor, lines: Lines, scale: float, tuned: Tuned, *,
              parts: "Sequence[Part]", dk: Tensor, dv: Tensor) -> None:
    """Writes dq part by part, `dk` and `dv`; arguments as above, one head in a step. Unless `tuned.in_order`, shares are added up in any
    order.
    """
    tiles, numbers = _backward_inputs(q, k, v, dout, base, delta, lines)
    num_heads, num_pieces = q.shape[1], lines.pieces.shape[1]
    sums = [torch.zeros(x.shape, dtype=torch.float32, device=q.device) for x in (q, k, v)]
    progress = torch.full((num_heads * num_pieces,), torch.iinfo(torch.int32).max, dtype=torch.int32, device=q.device)
    fused_kernel[(min(num_heads * num_pieces, _processors(q)),)](
        *tiles, *(_boxes(x, 64, 1, x.shape[2] // 2) for x in sums), torch.zeros(1, dtype=torch.int32, device=q.device), lines.pieces,
        lines.runs, lines.shapes, lines.waits, lines.waits_of, progress, num_pieces, num_heads * num_pieces,
        tuned.at_once, *numbers, scale * LOG2_E, tuned.in_order, tuned.stages,
        num_warps=4, maxnreg=168)
    for part in parts:
        _to_gradient(part.dq, sums[0], scale, part.carried, part.units)
    _to_gradient(dk, sums[1], scale)
    _to_gradient(dv, sums[2], 1.0)


def _to_gradient(x: Tensor, sums: Tensor, scale: float, carried: Tensor | None = None, units: Tensor | None = None) -> None:
    num_tokens, num_heads, head_dim = x.shape
    chunks = triton.cdiv(num_tokens * num_heads, 64) if units is None else len(units) * (UNIT * num_heads // 64)
    _finish[(chunks,)](x, x if carried is None else carried, sums, x if units is None else units, num_tokens * num_heads, num_heads,
                       x.stride(0), x.stride(1), scale, carried is not None, units is not None, UNIT, head_dim, 64)


def _backward_inputs(q: Tensor, k: Tensor, v: Tensor, dout: Tensor, base: Tensor, delta: Tensor,
                     lines: Lines) -> tuple[tuple[TensorDescriptor, ...], tuple[int, int, int]]:
    """(tiles, (KV heads of a group, packs of a KV head, statistics of a pack)), as both backward kernels take them."""
    num_kv_heads, head_dim, pack = k.shape[1], k.shape[2], 64 // lines.step
    base, delta = statistics(base), statistics(delta)
    tiles = (_boxes(q, lines.step, pack, head_dim), _boxes(dout, lines.step, pack, head_dim), _stats(base), _stats(delta),
             _boxes(k, 64, 1, head_dim), _boxes(v, 64, 1, head_dim))
    return tiles, (num_kv_heads // len(lines.pieces), q.shape[1] // num_kv_heads // pack, base[0].numel())


@triton.jit
def _finish(x_ptr, in_ptr, sums_ptr, units_ptr, num_rows, num_heads, x_token, x_head, scale, CARRY: tl.constexpr, SOME: tl.constexpr,
            UNIT: tl.constexpr, D: tl.constexpr, CHUNK: tl.constexpr):
    """Sums, whose columns are in the order of `sm90.dq_add.put`, to a gradient, added to what is carried. SOME: in units of tokens."""
    row, column = tl.program_id(0).to(tl.int64) * CHUNK + tl.arange(0, CHUNK), tl.arange(0, D)
    if SOME:
        rows_of_unit = UNIT * num_heads
        row = tl.load(units_ptr + row // rows_of_unit).to(tl.int64) * num_heads + row % rows_of_unit
    inside = (row < num_rows)[:, None]
    sums = tl.load(sums_ptr + row[:, None] * D + column[None, :], mask=inside, other=0.0)
    sums = sums.reshape(CHUNK, D // 32, 4, 4, 2).permute(0, 1, 3, 2, 4).reshape(CHUNK, D)
    to = (row // num_heads * x_token + row % num_heads * x_head)[:, None] + column[None, :]
    sums *= scale
    if CARRY:
        sums += tl.load(in_ptr + to, mask=inside, other=0.0)
    tl.store(x_ptr + to, sums.to(x_ptr.dtype.element_ty), mask=inside)


def _processors(x: Tensor) -> int:
    return torch.cuda.get_device_properties(x.device).multi_processor_count


def _boxes(x: Tensor, tokens: int, heads: int, dims: int) -> TensorDescriptor:
    box = [tokens, heads, dims]
    head_stride = x.stride(1) if x.shape[1] > 1 else x.shape[2]  # that of a single head may be anything
    return TensorDescriptor(x, list(x.shape), [x.stride(0), head_stride, 1], box, _layout(tuple(box), x.dtype))


@cache
def _layout(box: tuple[int, ...], dtype: torch.dtype) -> gl.NVMMASharedLayout:
    """Kept, since a call makes up to nine descriptors while the GPU waits."""
    return gl.NVMMASharedLayout.get_default_for(list(box), ELEMENTS[dtype])


def statistics(x: Tensor) -> Tensor:
    """Statistics of rows (packs, tokens, P) as `sm90.bwd_load.place_of_stats` finds them: (packs, copies, tokens of a copy, P).

    TMA reads from multiples of 16 bytes only (else: "illegal instruction"), and steps begin at any token. Where 16 bytes are several
    tokens, there are as many copies, each of which begins a token later than the one before.
    """
    packs, num_tokens, pack = x.shape
    copies = 4 // pack if pack < 4 else 1
    length = (num_tokens + 1 - copies) // copies * copies
    return x.as_strided((packs, copies, length, pack), (num_tokens * pack, pack, pack, 1)).contiguous()


def _stats(x: Tensor) -> TensorDescriptor:
    return TensorDescriptor.from_tensor(x.flatten(), [64], gl.NVMMASharedLayout(0, 32, 1))
