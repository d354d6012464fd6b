"""Band attention's backward pass in Triton, without atomics: dK and dV over row tiles of keys, dQ over row
tiles of queries.

Shapes as in `triton.forward`; `lse_log2` and `delta` are those of `triton.preprocess`.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from longca.ops.band.config import TileConfig
from longca.ops.band.replay.launches import Launches
from longca.ops.band.tables.schedule import TileSchedule
from longca.ops.band.triton.forward import (
    FIRST_SLOT,
    FULL_START,
    LOG2_E,
    NUM_COLUMNS,
    NUM_FULL,
    NUM_SLOTS,
    PARTIAL_END,
    PARTIAL_START,
    ROW_END,
    ROW_START,
    SLOT,
    SPLIT_COLUMNS,
    columns_of,
    first_range,
    is_visible,
    next_block,
    work_tile_of,
)

CHUNK = 64  # rows of a program that adds the splits' partial results


@triton.jit
def _rows_at(x_ptr, token, head, token_stride, head_stride, inside, D: tl.constexpr):
    offset = (
        token.to(tl.int64)[:, None] * token_stride + head[:, None] * head_stride + tl.arange(0, D)[None, :]
    )
    return tl.load(x_ptr + offset, mask=inside[:, None], other=0.0)


@triton.jit
def _store_rows(x_ptr, partial_ptr, x, token, head, token_stride, head_stride, inside, slot_row, slot,
                SPLIT: tl.constexpr,
                D: tl.constexpr):
    """Writes rows to the result, or as a partial result to a slot."""
    dim = tl.arange(0, D)
    offset = token.to(tl.int64)[:, None] * token_stride + head[:, None] * head_stride + dim[None, :]
    if SPLIT:
        if slot >= 0:
            tl.store(partial_ptr + slot_row[:, None] * D + dim[None, :], x, mask=inside[:, None])
        else:
            tl.store(x_ptr + offset, x.to(x_ptr.dtype.element_ty), mask=inside[:, None])
    else:
        tl.store(x_ptr + offset, x.to(x_ptr.dtype.element_ty), mask=inside[:, None])


@triton.jit(do_not_specialize=["num_tiles", "kv_heads_per_section", "packs_per_kv_head", "kv_heads_per_group",
                               "num_slots", "num_tokens"])
def _dkdv(q_desc, dout_desc, k_ptr, v_ptr, lse_log2_ptr, delta_ptr, dk_ptr, dv_ptr, partial_dk_ptr,
          partial_dv_ptr, work_tiles_ptr,
          ranges_ptr, masks_ptr, num_tiles, kv_heads_per_section, packs_per_kv_head, kv_heads_per_group,
          num_slots, num_tokens, k_token,
          k_head, v_token, v_head, dk_token, dk_head, dv_token, dv_head, scale, SPLIT: tl.constexpr,
          MASKED: tl.constexpr, D: tl.constexpr,
          PACK: tl.constexpr, TILE_M: tl.constexpr, TILE_N: tl.constexpr, STAGES: tl.constexpr):
    """dK and dV of one work tile of one KV head, over all its query heads. S is keys × queries. MASKED: there
    are partial blocks."""
    index, kv_head = work_tile_of(num_tiles, kv_heads_per_section)
    entry_ptr = work_tiles_ptr + (kv_head // kv_heads_per_group * num_tiles + index) * NUM_COLUMNS
    row_start, row_end, full_start = tl.load(entry_ptr + ROW_START), tl.load(entry_ptr + ROW_END), tl.load(entry_ptr + FULL_START)  # noqa: E501
    partial_end, num_full, slot = tl.load(entry_ptr + PARTIAL_END), tl.load(entry_ptr + NUM_FULL), tl.load(entry_ptr + SLOT)  # noqa: E501
    num_blocks = num_full + partial_end - tl.load(entry_ptr + PARTIAL_START)
    row = tl.arange(0, TILE_M)
    token, head = row_start + row, tl.zeros([TILE_M], tl.int32) + kv_head
    inside = token < row_end
    k = _rows_at(k_ptr, token, head, k_token, k_head, inside, D)
    v = _rows_at(v_ptr, token, head, v_token, v_head, inside, D)
    dk, dv = tl.zeros([TILE_M, D], dtype=tl.float32), tl.zeros([TILE_M, D], dtype=tl.float32)
    scale_log2 = scale * LOG2_E
    query = tl.arange(0, TILE_N * PACK)
    for own_pack in range(packs_per_kv_head):
        pack = kv_head * packs_per_kv_head + own_pack
        stats = pack.to(tl.int64) * num_tokens * PACK
        entry, left, ahead = (
            full_start,
            tl.zeros([], tl.int64),
            first_range(ranges_ptr, full_start, partial_end),
        )
        for number in tl.range(0, num_blocks, num_stages=STAGES):
            column, entry, left, ahead = next_block(ranges_ptr, entry, partial_end, left, ahead, TILE_N)
            mask = tl.where(number < num_full, -1, ((left >> 32) + 1).to(tl.int32))
            left = tl.where(number < num_full, left, 0)
            q = q_desc.load([column, pack * PACK, 0]).reshape(TILE_N * PACK, D)
            dout = dout_desc.load([column, pack * PACK, 0]).reshape(TILE_N * PACK, D)
            s = tl.dot(k, q.T)
            dp = tl.dot(v, dout.T)  # at this position it needs the fewest registers
            lse_log2 = tl.load(lse_log2_ptr + stats + column * PACK + query)
            p = tl.math.exp2(s * scale_log2 - lse_log2[None, :])
            if MASKED:  # noqa: SIM102 - the outer one is decided when compiling
                if mask >= 0:
                    p = tl.where(is_visible(masks_ptr, mask, row, query // PACK, TILE_M), p, 0.0)
            dv = tl.dot(p.to(dout.dtype), dout, dv)
            delta = tl.load(delta_ptr + stats + column * PACK + query)
            ds = p * (dp - delta[None, :])
            dk = tl.dot(ds.to(q.dtype), q, dk)
    slot_row = (kv_head.to(tl.int64) * num_slots + slot) * TILE_M + row
    _store_rows(
        dk_ptr, partial_dk_ptr, dk * scale, token, head, dk_token, dk_head, inside, slot_row, slot, SPLIT, D
    )
    _store_rows(dv_ptr, partial_dv_ptr, dv, token, head, dv_token, dv_head, inside, slot_row, slot, SPLIT, D)


@triton.jit(do_not_specialize=["num_tiles", "packs_per_section", "packs_per_kv_head", "packs_per_group",
                               "num_slots", "num_tokens"])
def _dq(q_ptr, k_desc, v_desc, dout_ptr, lse_log2_ptr, delta_ptr, dq_ptr, initial_dq_ptr, partial_dq_ptr,
        work_tiles_ptr, ranges_ptr,
        masks_ptr, num_tiles, packs_per_section, packs_per_kv_head, packs_per_group, num_slots, num_tokens,
        q_token, q_head, dout_token,
        dout_head, dq_token, dq_head, scale, HAS_INITIAL: tl.constexpr, SPLIT: tl.constexpr,
        MASKED: tl.constexpr, D: tl.constexpr,
        PACK: tl.constexpr, TILE_M: tl.constexpr, TILE_N: tl.constexpr, STAGES: tl.constexpr):
    """dQ of one work tile of one pack. MASKED as above."""
    index, pack = work_tile_of(num_tiles, packs_per_section)
    entry_ptr = work_tiles_ptr + (pack // packs_per_group * num_tiles + index) * NUM_COLUMNS
    row_start, row_end, full_start = (
        tl.load(entry_ptr + ROW_START),
        tl.load(entry_ptr + ROW_END),
        tl.load(entry_ptr + FULL_START),
    )
    partial_end, num_full, slot = (
        tl.load(entry_ptr + PARTIAL_END),
        tl.load(entry_ptr + NUM_FULL),
        tl.load(entry_ptr + SLOT),
    )
    num_blocks = num_full + partial_end - tl.load(entry_ptr + PARTIAL_START)
    row = tl.arange(0, TILE_M * PACK)
    token, head = row_start + row // PACK, pack * PACK + row % PACK
    inside = token < row_end
    q = _rows_at(q_ptr, token, head, q_token, q_head, inside, D)
    dout = _rows_at(dout_ptr, token, head, dout_token, dout_head, inside, D)
    stats = (pack.to(tl.int64) * num_tokens + row_start) * PACK + row
    lse_log2 = tl.load(lse_log2_ptr + stats, mask=inside, other=float("inf"))
    delta = tl.load(delta_ptr + stats, mask=inside, other=0.0)
    dq = tl.zeros([TILE_M * PACK, D], dtype=tl.float32)
    scale_log2 = scale * LOG2_E
    kv_offset = pack // packs_per_kv_head * D
    entry, left, ahead = full_start, tl.zeros([], tl.int64), first_range(ranges_ptr, full_start, partial_end)
    for number in tl.range(0, num_blocks, num_stages=STAGES):
        column, entry, left, ahead = next_block(ranges_ptr, entry, partial_end, left, ahead, TILE_N)
        mask = tl.where(number < num_full, -1, ((left >> 32) + 1).to(tl.int32))
        left = tl.where(number < num_full, left, 0)
        k = k_desc.load([column, kv_offset])
        p = tl.math.exp2(tl.dot(q, k.T) * scale_log2 - lse_log2[:, None])
        if MASKED:  # noqa: SIM102 - the outer one is decided when compiling
            if mask >= 0:
                p = tl.where(is_visible(masks_ptr, mask, row // PACK, tl.arange(0, TILE_N), TILE_M), p, 0.0)
        v = v_desc.load([column, kv_offset])
        ds = p * (tl.dot(dout, v.T) - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq)
    dq *= scale
    if HAS_INITIAL:  # where the row tile is split, the partial results are added to it
        dq += _rows_at(initial_dq_ptr, token, head, dq_token, dq_head, inside & (slot < 0), D)
    slot_row = (pack.to(tl.int64) * num_slots + slot) * (TILE_M * PACK) + row
    _store_rows(dq_ptr, partial_dq_ptr, dq, token, head, dq_token, dq_head, inside, slot_row, slot, SPLIT, D)


@triton.jit(do_not_specialize=["num_splits", "packs_per_group", "num_slots"])
def _add_partials(x_ptr, initial_ptr, partial_ptr, splits_ptr, num_splits, packs_per_group, num_slots,
                  x_token, x_head,
                  HAS_INITIAL: tl.constexpr, D: tl.constexpr, PACK: tl.constexpr, TILE_M: tl.constexpr,
                  CHUNK: tl.constexpr):
    """Adds the splits of CHUNK rows of one row tile of one pack, in their order, to the initial gradient."""
    pack = tl.program_id(1)
    entry_ptr = splits_ptr + (pack // packs_per_group * num_splits + tl.program_id(0)) * SPLIT_COLUMNS
    row_start, row_end, first_slot = (
        tl.load(entry_ptr + ROW_START),
        tl.load(entry_ptr + ROW_END),
        tl.load(entry_ptr + FIRST_SLOT),
    )
    row, dim = tl.program_id(2) * CHUNK + tl.arange(0, CHUNK), tl.arange(0, D)
    token, head = row_start + row // PACK, pack * PACK + row % PACK
    inside = (token < row_end)[:, None]
    x = tl.zeros([CHUNK, D], dtype=tl.float32)
    x_offset = token.to(tl.int64)[:, None] * x_token + head[:, None] * x_head + dim[None, :]
    if HAS_INITIAL:
        x = tl.load(initial_ptr + x_offset, mask=inside, other=0.0)
    for slot in range(first_slot, first_slot + tl.load(entry_ptr + NUM_SLOTS)):
        slot_row = (pack.to(tl.int64) * num_slots + slot) * (TILE_M * PACK) + row
        x += tl.load(partial_ptr + slot_row[:, None] * D + dim[None, :], mask=inside, other=0.0)
    tl.store(x_ptr + x_offset, x.to(x_ptr.dtype.element_ty), mask=inside)


def backward_dkdv(launches: Launches, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dout: torch.Tensor,
                  stats: torch.Tensor,
                  schedule: TileSchedule, scale: float, config: TileConfig, *, dk: torch.Tensor,
                  dv: torch.Tensor) -> None:
    """Writes `dk` and `dv`.

    Args:
        stats: of `preprocess`, with as many heads in a pack as share a block.
    """
    lse_log2, delta = stats
    num_kv_heads, head_dim, pack = k.shape[1], k.shape[2], delta.shape[-1]
    num_tiles, groups = schedule.work_tiles.shape[1], len(schedule.work_tiles)
    partials = [launches.empty(num_kv_heads, schedule.num_slots, schedule.tile_m, head_dim) for _ in range(2)]
    strides = dk.stride(0), dk.stride(1), dv.stride(0), dv.stride(1)
    launches.launch(
        _dkdv, (num_tiles * num_kv_heads,), _packs_of(q, schedule.tile_n, pack),
                    _packs_of(dout, schedule.tile_n, pack), k, v, lse_log2,
        delta, dk, dv, *partials, schedule.work_tiles, schedule.block_ranges, schedule.partial_masks,
                    num_tiles,
        config.kv_heads_per_section, q.shape[1] // num_kv_heads // pack, num_kv_heads // groups,
                    schedule.num_slots,
        delta[0].numel() // pack, k.stride(0), k.stride(1), v.stride(0), v.stride(1), *strides, scale,
                    schedule.num_slots > 0,
        len(schedule.partial_masks) > 0, head_dim, pack, schedule.tile_m, schedule.tile_n, config.num_stages, num_warps=config.num_warps,  # noqa: E501
        num_stages=config.num_stages)
    for x, partial in zip((dk, dv), partials, strict=True):
        add_partials(launches, x, partial, schedule, 1)


def backward_dq(launches: Launches, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dout: torch.Tensor,
                stats: torch.Tensor,
                schedule: TileSchedule, scale: float, config: TileConfig, *, packs_per_section: int,
                dq: torch.Tensor,
                initial: torch.Tensor | None = None) -> None:
    """Writes `dq`.

    Args:
        stats: of `preprocess`, with as many heads in a pack as share a tile.
        initial: float32, strided as `dq`, which it may be: dQ is added to it.
    """
    lse_log2, delta = stats
    head_dim, pack, packs = q.shape[2], delta.shape[-1], delta.shape[0]
    num_tiles, groups = schedule.work_tiles.shape[1], len(schedule.work_tiles)
    partial = launches.empty(packs, schedule.num_slots, config.block_m, head_dim)
    launches.launch(
        _dq, (num_tiles * packs,), q, columns_of(k, schedule.tile_n), columns_of(v, schedule.tile_n), dout,
                    lse_log2, delta, dq,
        dq if initial is None else initial, partial, schedule.work_tiles, schedule.block_ranges,
                    schedule.partial_masks, num_tiles,
        packs_per_section, packs // k.shape[1], packs // groups, schedule.num_slots, delta[0].numel() // pack,
                    q.stride(0), q.stride(1),
        dout.stride(0), dout.stride(1), dq.stride(0), dq.stride(1), scale, initial is not None,
                    schedule.num_slots > 0,
        len(schedule.partial_masks) > 0, head_dim, pack, schedule.tile_m, schedule.tile_n, config.num_stages,
                    num_warps=config.num_warps,
        num_stages=config.num_stages)
    add_partials(launches, dq, partial, schedule, pack, initial)


def add_partials(launches: Launches, x: torch.Tensor, partial: torch.Tensor, schedule: TileSchedule,
                 pack: int,
                 initial: torch.Tensor | None = None) -> None:
    """Adds up the splits' partial results (packs, slots, rows, D) into a gradient, and the initial one, if
    there are splits."""
    if schedule.num_slots > 0:
        packs, _, rows, head_dim = partial.shape
        chunk = min(rows, CHUNK)
        launches.launch(
            _add_partials, (schedule.splits.shape[1], packs, rows // chunk), x,
                        x if initial is None else initial, partial, schedule.splits,
            schedule.splits.shape[1], packs // len(schedule.work_tiles), schedule.num_slots, x.stride(0),
                        x.stride(1), initial is not None,
            head_dim, pack, schedule.tile_m, chunk)


def _packs_of(x: torch.Tensor, tokens: int, pack: int) -> TensorDescriptor:
    """A descriptor of so many tokens of `pack` heads at a time."""
    head_stride = x.stride(1) if x.shape[1] > 1 else x.shape[2]  # that of a single head may be anything
    return TensorDescriptor(x, list(x.shape), [x.stride(0), head_stride, 1], [tokens, pack, x.shape[2]])
