"""The launch of the Hopper kernels. Shapes as in `triton.forward`, tables as in `tables.schedule`."""

import math
from collections.abc import Sequence
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from longca.ops.band.config import TileConfig
from longca.ops.band.plan import UNIT, DqTarget
from longca.ops.band.replay.launches import Launches
from longca.ops.band.sm90.bwd_dkdv import dkdv_kernel
from longca.ops.band.sm90.bwd_dq import dq_kernel
from longca.ops.band.sm90.bwd_fused import fused_kernel
from longca.ops.band.sm90.forward import forward_kernel
from longca.ops.band.tables.schedule import TileSchedule
from longca.ops.band.triton.backward import add_partials
from longca.ops.band.triton.forward import combine_kernel

ELEMENTS = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16, torch.float32: gl.float32}
LOG2_E = math.log2(math.e)
CHUNK = 64  # rows of a program that finishes gradients


def forward(launches: Launches, q: Tensor, k: Tensor, v: Tensor, schedule: TileSchedule, scale: float,
            config: TileConfig, *,
            packs_per_section: int, out: Tensor, lse: Tensor,
            initial: tuple[Tensor, Tensor] | None = None) -> None:
    """Writes `out` and `lse`. Rows that see no key: 0 and −inf.

    Args:
        schedule: row tiles of queries: `config.block_m` rows, 64, 128 or 192, over the heads that share a
            tile. KV blocks of 64 keys, or for more than 64 rows also of 128.
        initial: (out float32, LSE) of other keys, to be merged with; may be `out` and `lse` themselves.
    """
    num_heads, head_dim, num_kv_heads = q.shape[1], q.shape[2], k.shape[1]
    consumers, pack = config.block_m // 64, config.block_m // schedule.tile_m
    packs, num_tiles = num_heads // pack, schedule.work_tiles.shape[1]
    partial_out = launches.empty(packs, schedule.num_slots, config.block_m, head_dim)
    partial_lse = launches.empty(packs, schedule.num_slots, config.block_m)
    initial_out, initial_lse = initial if initial is not None else (out, lse)
    strides = out.stride(0), out.stride(1), lse.stride(0), lse.stride(1)
    packs_per_group = packs // len(schedule.work_tiles)
    # one consumer group takes half a multiprocessor
    num_programs = min(packs * num_tiles, (2 if consumers == 1 else 1) * launches.multiprocessors)
    if num_programs == 0:
        return
    parts = 128 // schedule.tile_n if consumers > 1 else 1
    narrow_n = config.narrow_n if consumers > 1 and parts == 1 else 0
    boxes = _boxes(k, schedule.tile_n, 1, 64), _boxes(v, schedule.tile_n, 1, 64)
    # else they are not read
    narrow_boxes = (_boxes(k, narrow_n, 1, 64), _boxes(v, narrow_n, 1, 64)) if narrow_n else boxes
    launches.launch(
        forward_kernel, (num_programs,), _boxes(q, 64 // pack, pack, head_dim), *boxes, *narrow_boxes,
                    launches.counter(),
        schedule.work_tiles, schedule.block_ranges, schedule.partial_masks, out, lse, initial_out,
                    initial_lse, partial_out, partial_lse,
        *strides, schedule.num_slots, num_tiles, packs * num_tiles, packs_per_section, packs // num_kv_heads,
                    packs_per_group,
        scale * LOG2_E, head_dim, pack, consumers, parts, narrow_n, initial is not None,
                    config.num_stages if consumers > 1 else 3, num_warps=4,
        maxnreg=168 if consumers == 2 else 128)
    if schedule.num_slots:
        chunk = 16 if consumers == 1 else 32
        launches.launch(
            combine_kernel, (schedule.splits.shape[1], packs, config.block_m // chunk), out, lse, initial_out,
                        initial_lse, partial_out, partial_lse,
            schedule.splits, schedule.splits.shape[1], packs_per_group, schedule.num_slots, *strides,
                        initial is not None, head_dim, pack,
            schedule.tile_m, chunk)


def backward_dkdv(launches: Launches, q: Tensor, k: Tensor, v: Tensor, dout: Tensor, stats: Tensor,
                  schedule: TileSchedule,
                  scale: float, config: TileConfig, *, dk: Tensor, dv: Tensor) -> None:
    """Writes `dk` and `dv`.

    Args:
        stats: of `triton.preprocess.preprocess` for TMA, with as many heads in a pack as share a block.
        schedule: of 128 keys, in blocks of `config.block_n` rows, 64 or 128, over these heads.
    """
    tiles, numbers = _backward_inputs(launches, q, k, v, dout, stats, schedule, config)
    num_kv_heads, head_dim, num_tiles = k.shape[1], k.shape[2], schedule.work_tiles.shape[1]
    num_items = num_kv_heads * num_tiles
    partials = [launches.empty(num_kv_heads, schedule.num_slots, schedule.tile_m, head_dim) for _ in range(2)]
    strides = dk.stride(0), dk.stride(1), dv.stride(0), dv.stride(1)
    launches.launch(
        dkdv_kernel, (min(num_items, launches.multiprocessors),), *tiles, launches.counter(),
                    schedule.work_tiles, schedule.block_ranges,
        schedule.partial_masks, dk, dv, *partials, *strides, schedule.num_slots, num_tiles, num_items,
                    config.kv_heads_per_section,
        *numbers, scale, scale * LOG2_E, config.block_n // schedule.tile_n, config.num_stages,
        num_warps=4, maxnreg=168)
    for x, partial in zip((dk, dv), partials, strict=True):
        add_partials(launches, x, partial, schedule, 1)


def backward_dq(launches: Launches, q: Tensor, k: Tensor, v: Tensor, dout: Tensor, stats: Tensor,
                schedule: TileSchedule,
                scale: float, config: TileConfig, *, packs_per_section: int, dq: Tensor,
                initial: Tensor | None = None) -> None:
    """Writes `dq`.

    Args:
        initial: float32, strided as `dq`, which it may be: dQ is added to it.
        stats: of `triton.preprocess.preprocess`, with as many heads in a pack as share a tile.
        schedule: of 128 rows over these heads, in blocks of `config.block_n` keys, 64 or 128.
    """
    assert config.block_m == 128, "of two warp groups"
    lse_log2, delta = stats
    pack, packs, head_dim, num_tiles = (
        delta.shape[-1],
        delta.shape[0],
        q.shape[2],
        schedule.work_tiles.shape[1],
    )
    partial = launches.empty(packs, schedule.num_slots, config.block_m, head_dim)
    launches.launch(
        dq_kernel, (min(packs * num_tiles, launches.multiprocessors),), _boxes(q, 64 // pack, pack, head_dim),
        _boxes(dout, 64 // pack, pack, head_dim), *(_boxes(x, config.block_n, 1, head_dim) for x in (k, v)),
                    launches.counter(),
        schedule.work_tiles, schedule.block_ranges, schedule.partial_masks, lse_log2, delta, dq,
                    dq if initial is None else initial,
        partial, dq.stride(0), dq.stride(1), schedule.num_slots, num_tiles, packs * num_tiles,
                    packs_per_section, packs // k.shape[1],
        packs // len(schedule.work_tiles), delta[0].numel() // pack, scale, scale * LOG2_E, pack,
                    initial is not None, config.num_stages,
        num_warps=4, maxnreg=168)
    add_partials(launches, dq, partial, schedule, pack, initial)


def backward_fused(launches: Launches, q: Tensor, k: Tensor, v: Tensor, dout: Tensor, stats: Tensor,
                   schedule: TileSchedule,
                   scale: float, config: TileConfig, *, targets: Sequence[DqTarget], dk: Tensor,
                   dv: Tensor) -> None:
    """Writes the dQ of each target, `dk` and `dv`; arguments as above, one head in a block. Unless
    `config.in_order`, terms are accumulated in any order.
    """
    assert config.block_n * q.shape[2] == 64 * 128, "a block's dQ has two parts of 64 × 64"
    tiles, numbers = _backward_inputs(launches, q, k, v, dout, stats, schedule, config)
    num_heads, num_tiles = q.shape[1], schedule.work_tiles.shape[1]
    num_items = num_heads // config.heads_per_item * num_tiles
    sums = [(launches.empty if schedule.stores_first else launches.zeros)(*x.shape) for x in (q, k, v)]
    progress = launches.zeros(num_heads * num_tiles).view(torch.int32)
    launches.launch(
        fused_kernel, (min(num_items, launches.multiprocessors),), *tiles,
                    *(_boxes(x, 64, 1, 64) for x in sums),
        launches.counter(), schedule.work_tiles, schedule.block_ranges, schedule.partial_masks,
                    schedule.waits, schedule.wait_ranges,
        progress, num_tiles, num_items, config.kv_heads_per_section, config.rounds_per_section, *numbers,
                    config.heads_per_item,
        scale * LOG2_E, int(config.in_order), int(schedule.stores_first), config.num_stages, num_warps=4,
                    maxnreg=168)
    finish_gradients(launches, sums, targets, dk, dv, scale)


def finish_gradients(launches: Launches, sums: Sequence[Tensor], targets: Sequence[DqTarget], dk: Tensor,
                     dv: Tensor, scale: float) -> None:
    """Writes the dQ of each target, `dk` and `dv` from the sums of the fused kernel: float32, contiguous, of
    the gradients' shapes."""
    num_k_rows = len(dk) * dk.shape[1]
    parts = [(target.dq, target.initial, target.plan.units) for target in targets]
    for place, (dq, initial, units) in enumerate(parts or [(dk[:0], None, None)]):
        num_q_rows = len(dq) * dq.shape[1]
        chunks = triton.cdiv(num_q_rows if units is None else len(units) * UNIT * dq.shape[1], CHUNK)
        key_chunks = triton.cdiv(num_k_rows, CHUNK) if place == 0 else 0
        launches.launch(
            _finish_gradients, (chunks + 2 * key_chunks,), dq, dq if initial is None else initial,
                        dq if units is None else units, dk, dv,
            *sums, chunks, key_chunks, num_q_rows, num_k_rows, dq.shape[1], dk.shape[1], dq.stride(0),
                        dq.stride(1), dk.stride(0),
            dk.stride(1), dv.stride(0), dv.stride(1), scale, initial is not None, units is not None, UNIT,
                        dq.shape[2], CHUNK)


def _backward_inputs(launches: Launches, q: Tensor, k: Tensor, v: Tensor, dout: Tensor, stats: Tensor,
                     schedule: TileSchedule, config: TileConfig
                     ) -> tuple[tuple[TensorDescriptor, ...], tuple[int, int, int]]:
    """(TMA descriptors, (KV heads of a group, packs of a KV head, statistics of a pack)) for the dK/dV and
    the fused kernel."""
    num_kv_heads, head_dim, pack = k.shape[1], k.shape[2], config.block_n // schedule.tile_n
    lse_log2, delta = stats
    tiles = (_boxes(q, schedule.tile_n, pack, head_dim), _boxes(dout, schedule.tile_n, pack, head_dim),
             _stats(lse_log2, config.block_n), _stats(delta, config.block_n),
             _boxes(k, 64, 1, head_dim), _boxes(v, 64, 1, head_dim))
    return tiles, (
        num_kv_heads // len(schedule.work_tiles),
        q.shape[1] // num_kv_heads // pack,
        lse_log2[0].numel(),
    )


@triton.jit
def _finish_rows(x_ptr, initial_ptr, sums_ptr, row, num_rows, num_heads, x_token, x_head, scale,
                 HAS_INITIAL: tl.constexpr, D: tl.constexpr,
                 CHUNK: tl.constexpr):
    """Converts rows of sums, whose columns are in the order of `sm90.bwd_fused`, to rows of a gradient, added
    to the initial one."""
    column = tl.arange(0, D)
    inside = (row < num_rows)[:, None]
    sums = tl.load(sums_ptr + row[:, None] * D + column[None, :], mask=inside, other=0.0)
    sums = sums.reshape(CHUNK, D // 32, 4, 4, 2).permute(0, 1, 3, 2, 4).reshape(CHUNK, D) * scale
    to = (row // num_heads * x_token + row % num_heads * x_head)[:, None] + column[None, :]
    if HAS_INITIAL:
        sums += tl.load(initial_ptr + to, mask=inside, other=0.0)
    tl.store(x_ptr + to, sums.to(x_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["num_q_chunks", "num_k_chunks", "num_q_rows", "num_k_rows", "num_q_heads",
                               "num_kv_heads"])
def _finish_gradients(dq_ptr, initial_dq_ptr, units_ptr, dk_ptr, dv_ptr, dq_sums_ptr, dk_sums_ptr,
                      dv_sums_ptr, num_q_chunks, num_k_chunks,
                      num_q_rows, num_k_rows, num_q_heads, num_kv_heads, dq_token, dq_head, dk_token, dk_head,
                      dv_token, dv_head, scale,
                      HAS_INITIAL: tl.constexpr, SOME: tl.constexpr, UNIT: tl.constexpr, D: tl.constexpr,
                      CHUNK: tl.constexpr):
    """A chunk of rows of dQ, then of dK, then of dV. SOME: of dQ, rows of some units."""
    chunk = tl.program_id(0)
    rows = tl.arange(0, CHUNK)
    if chunk < num_q_chunks:
        row = chunk.to(tl.int64) * CHUNK + rows
        if SOME:
            rows_of_unit = UNIT * num_q_heads
            row = tl.load(units_ptr + row // rows_of_unit).to(tl.int64) * num_q_heads + row % rows_of_unit
        _finish_rows(dq_ptr, initial_dq_ptr, dq_sums_ptr, row, num_q_rows, num_q_heads, dq_token, dq_head,
                     scale, HAS_INITIAL, D, CHUNK)
    elif chunk < num_q_chunks + num_k_chunks:
        row = (chunk - num_q_chunks).to(tl.int64) * CHUNK + rows
        _finish_rows(dk_ptr, dk_ptr, dk_sums_ptr, row, num_k_rows, num_kv_heads, dk_token, dk_head, scale,
                     False, D, CHUNK)
    else:
        row = (chunk - num_q_chunks - num_k_chunks).to(tl.int64) * CHUNK + rows
        _finish_rows(dv_ptr, dv_ptr, dv_sums_ptr, row, num_k_rows, num_kv_heads, dv_token, dv_head, 1.0,
                     False, D, CHUNK)


def _boxes(x: Tensor, tokens: int, heads: int, dims: int) -> TensorDescriptor:
    box = [tokens, heads, dims]
    head_stride = x.stride(1) if x.shape[1] > 1 else x.shape[2]  # that of a single head may be anything
    return TensorDescriptor(
        x, list(x.shape), [x.stride(0), head_stride, 1], box, _layout(tuple(box), x.dtype)
    )


@cache
def _layout(box: tuple[int, ...], dtype: torch.dtype) -> gl.NVMMASharedLayout:
    """The layout of a box in shared memory. Cached, since a call creates up to nine descriptors while the GPU
    waits."""
    return gl.NVMMASharedLayout.get_default_for(list(box), ELEMENTS[dtype])


def _stats(x: Tensor, rows: int) -> TensorDescriptor:
    return TensorDescriptor.from_tensor(x.flatten(), [rows], gl.NVMMASharedLayout(0, 32, 1))
