"""Band attention's forward pass in Triton: one online softmax over the full and partial KV blocks of a row
tile.

Shapes: T tokens, H query heads, G KV heads, D head dim, PACK query heads of one KV head that share a tile (a
    pack), ROWS = PACK ·
TILE_M rows of the score matrix. q and out are (Tq, H, D), k and v (Tk, G, D), LSE is (Tq, H). Offsets in q,
k, v are 64-bit.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from longca.ops.band.config import TileConfig
from longca.ops.band.replay.launches import Launches
from longca.ops.band.tables import schedule as schedules
from longca.ops.band.tables.schedule import TileSchedule

LOG2_E, LN_2 = tl.constexpr(1.4426950408889634), tl.constexpr(0.6931471805599453)


# Columns of a work tile in `TileSchedule.work_tiles`, and of a row tile in its `splits`.
ROW_START, ROW_END = tl.constexpr(schedules.ROW_START), tl.constexpr(schedules.ROW_END)
FULL_START, PARTIAL_START = tl.constexpr(schedules.FULL_START), tl.constexpr(schedules.PARTIAL_START)
PARTIAL_END, NUM_FULL, SLOT = (
    tl.constexpr(schedules.PARTIAL_END),
    tl.constexpr(schedules.NUM_FULL),
    tl.constexpr(schedules.SLOT),
)
NUM_COLUMNS = tl.constexpr(schedules.NUM_COLUMNS)
FIRST_SLOT, NUM_SLOTS, SPLIT_COLUMNS = tl.constexpr(2), tl.constexpr(3), tl.constexpr(4)


@triton.jit
def work_tile_of(num_tiles, packs_per_section):
    """(index of the work tile, pack) of this program.

    Packs come in sections whose keys fit into L2; in a section the longest work tiles come first.
    """
    section = tl.program_id(0) // (num_tiles * packs_per_section)
    within = tl.program_id(0) % (num_tiles * packs_per_section)
    return within // packs_per_section, section * packs_per_section + within % packs_per_section


@triton.jit
def next_block(ranges_ptr, entry, end, left, ahead, TILE_N: tl.constexpr):
    """(column, entry, left, ahead) of the next full block.

    `left` is the rest of an entry of `block_ranges`, blocks << 32 | column. `ahead` is the entry after it,
    which is loaded an entry early, so that loads of keys or queries never wait for it.
    """
    fresh = left < (1 << 32)
    left = tl.where(fresh, ahead, left)
    entry += fresh.to(tl.int32)
    ahead = tl.load(
        (ranges_ptr + 2 * entry).to(tl.pointer_type(tl.int64)), mask=fresh & (entry < end), other=ahead
    )
    return left.to(tl.int32), entry, left + (TILE_N - (1 << 32)), ahead


@triton.jit
def first_range(ranges_ptr, entry, end):
    """The first `ahead` of `next_block`."""
    return tl.load((ranges_ptr + 2 * entry).to(tl.pointer_type(tl.int64)), mask=entry < end, other=0)


@triton.jit
def is_visible(masks_ptr, mask, tile_row, column, TILE_M: tl.constexpr):
    """True where a row sees a column of a partial block, (rows, columns)."""
    bounds = tl.load(masks_ptr + mask * TILE_M + tile_row)
    start = bounds & 0xFFFF
    return (column[None, :] - start[:, None]).to(tl.uint32) < ((bounds >> 16) - start).to(tl.uint32)[:, None]


@triton.jit
def _attend(acc, row_max, row_sum, q, k_desc, v_desc, column, kv_offset, scale_log2, masks_ptr, mask,
            tile_row,
            MASKED: tl.constexpr, D: tl.constexpr, TILE_M: tl.constexpr, TILE_N: tl.constexpr):
    """Online softmax over one KV block. MASKED: 0 never, 1 always, 2 where `mask` is not −1."""
    k = k_desc.load([column, kv_offset])
    s = tl.dot(q, k.T)
    if MASKED == 1:
        s = tl.where(is_visible(masks_ptr, mask, tile_row, tl.arange(0, TILE_N), TILE_M), s, float("-inf"))
    if MASKED == 2:  # noqa: SIM102 - the outer one is decided when compiling
        if mask >= 0:
            s = tl.where(
                is_visible(masks_ptr, mask, tile_row, tl.arange(0, TILE_N), TILE_M), s, float("-inf")
            )
    new_max = tl.maximum(row_max, tl.max(s, 1) * scale_log2)
    shift = new_max
    if MASKED > 0:  # nothing seen yet: any finite shift will do
        shift = tl.where(new_max == float("-inf"), 0.0, new_max)
    p = tl.math.exp2(s * scale_log2 - shift[:, None])
    rescale = tl.math.exp2(row_max - shift)
    row_sum = row_sum * rescale + tl.sum(p, 1)
    v = v_desc.load([column, kv_offset])
    acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None])
    return acc, new_max, row_sum


@triton.jit(
    do_not_specialize=["num_tiles", "packs_per_section", "packs_per_kv_head", "packs_per_group", "num_slots",
                       "lse_token"]
)
def _forward(q_ptr, k_desc, v_desc, out_ptr, lse_ptr, initial_out_ptr, initial_lse_ptr, partial_out_ptr,
             partial_lse_ptr, work_tiles_ptr,
             ranges_ptr, masks_ptr, num_tiles, packs_per_section, packs_per_kv_head, packs_per_group,
             num_slots, q_token, q_head, out_token,
             out_head, lse_token, lse_head, scale_log2, LOOP: tl.constexpr, HAS_INITIAL: tl.constexpr,
             SPLIT: tl.constexpr,
             D: tl.constexpr, PACK: tl.constexpr, TILE_M: tl.constexpr, TILE_N: tl.constexpr,
             STAGES: tl.constexpr):
    """One work tile of one pack."""
    index, pack = work_tile_of(num_tiles, packs_per_section)
    entry_ptr = work_tiles_ptr + (pack // packs_per_group * num_tiles + index) * NUM_COLUMNS
    row_start, row_end = tl.load(entry_ptr + ROW_START), tl.load(entry_ptr + ROW_END)
    full_start, partial_start = tl.load(entry_ptr + FULL_START), tl.load(entry_ptr + PARTIAL_START)
    partial_end = tl.load(entry_ptr + PARTIAL_END)
    num_full, slot = tl.load(entry_ptr + NUM_FULL), tl.load(entry_ptr + SLOT)
    ROWS: tl.constexpr = TILE_M * PACK
    row = tl.arange(0, ROWS)
    token, head = row_start + row // PACK, pack * PACK + row % PACK
    inside, dim = token < row_end, tl.arange(0, D)
    q = tl.load(
        q_ptr + token.to(tl.int64)[:, None] * q_token + head[:, None] * q_head + dim[None, :],
        mask=inside[:, None],
        other=0.0,
    )
    acc = tl.zeros([ROWS, D], dtype=tl.float32)
    row_max = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    row_sum = tl.zeros([ROWS], dtype=tl.float32)
    out_offset = token.to(tl.int64)[:, None] * out_token + head[:, None] * out_head + dim[None, :]
    lse_offset = token.to(tl.int64) * lse_token + head * lse_head
    if HAS_INITIAL:
        whole = inside & (slot < 0)
        row_max = tl.load(initial_lse_ptr + lse_offset, mask=whole, other=float("-inf")) * LOG2_E
        row_sum = tl.where(row_max > float("-inf"), 1.0, 0.0)
        acc = tl.load(initial_out_ptr + out_offset, mask=whole[:, None], other=0.0)

    kv_offset = pack // packs_per_kv_head * D
    tile_row = row // PACK
    if LOOP == 2:
        entry, left, ahead = (
            full_start,
            tl.zeros([], tl.int64),
            first_range(ranges_ptr, full_start, partial_end),
        )
        for number in tl.range(0, num_full + partial_end - partial_start, num_stages=STAGES):
            column, entry, left, ahead = next_block(ranges_ptr, entry, partial_end, left, ahead, TILE_N)
            mask = tl.where(number < num_full, -1, ((left >> 32) + 1).to(tl.int32))
            left = tl.where(number < num_full, left, 0)
            acc, row_max, row_sum = _attend(acc, row_max, row_sum, q, k_desc, v_desc, column, kv_offset,
                                            scale_log2, masks_ptr,
                                            mask, tile_row, 2, D, TILE_M, TILE_N)
    else:
        if LOOP == 1:
            entry, left, ahead = (
                full_start,
                tl.zeros([], tl.int64),
                first_range(ranges_ptr, full_start, partial_end),
            )
            for _ in tl.range(0, num_full, num_stages=STAGES):
                column, entry, left, ahead = next_block(ranges_ptr, entry, partial_end, left, ahead, TILE_N)
                acc, row_max, row_sum = _attend(acc, row_max, row_sum, q, k_desc, v_desc, column, kv_offset,
                                                scale_log2, masks_ptr,
                                                0, tile_row, 0, D, TILE_M, TILE_N)
        else:
            for entry in range(full_start, partial_start):
                column = tl.load(ranges_ptr + 2 * entry)
                for block in tl.range(0, tl.load(ranges_ptr + 2 * entry + 1), num_stages=STAGES):
                    acc, row_max, row_sum = _attend(acc, row_max, row_sum, q, k_desc, v_desc,
                                                    column + block * TILE_N, kv_offset,
                                                    scale_log2, masks_ptr, 0, tile_row, 0, D, TILE_M, TILE_N)
        for entry in tl.range(partial_start, partial_end, num_stages=STAGES):
            acc, row_max, row_sum = _attend(acc, row_max, row_sum, q, k_desc, v_desc,
                                            tl.load(ranges_ptr + 2 * entry), kv_offset,
                                            scale_log2, masks_ptr, tl.load(ranges_ptr + 2 * entry + 1),
                                            tile_row, 1, D, TILE_M, TILE_N)

    empty = row_sum == 0.0
    row_sum = tl.where(empty, 1.0, row_sum)
    acc = acc / row_sum[:, None]
    lse = tl.where(empty, float("-inf"), (row_max + tl.math.log2(row_sum)) * LN_2)
    if SPLIT:
        slot_row = (pack.to(tl.int64) * num_slots + slot) * ROWS + row
        tl.store(
            partial_out_ptr + slot_row[:, None] * D + dim[None, :], acc, mask=(inside & (slot >= 0))[:, None]
        )
        tl.store(partial_lse_ptr + slot_row, lse, mask=inside & (slot >= 0))
        inside = inside & (slot < 0)
    tl.store(out_ptr + out_offset, acc.to(out_ptr.dtype.element_ty), mask=inside[:, None])
    tl.store(lse_ptr + lse_offset, lse, mask=inside)


@triton.jit(do_not_specialize=["num_splits", "packs_per_group", "num_slots", "lse_token"])
def combine_kernel(out_ptr, lse_ptr, initial_out_ptr, initial_lse_ptr, partial_out_ptr, partial_lse_ptr,
                   splits_ptr, num_splits,
                   packs_per_group, num_slots, out_token, out_head, lse_token, lse_head,
                   HAS_INITIAL: tl.constexpr, D: tl.constexpr,
                   PACK: tl.constexpr, TILE_M: tl.constexpr, CHUNK: tl.constexpr):
    """Combines the splits of CHUNK rows of one row tile of one pack, in their order, by their LSE."""
    pack = tl.program_id(1)
    entry_ptr = splits_ptr + (pack // packs_per_group * num_splits + tl.program_id(0)) * SPLIT_COLUMNS
    row_start, row_end, first_slot = (
        tl.load(entry_ptr + ROW_START),
        tl.load(entry_ptr + ROW_END),
        tl.load(entry_ptr + FIRST_SLOT),
    )
    row, dim = tl.program_id(2) * CHUNK + tl.arange(0, CHUNK), tl.arange(0, D)
    token, head = row_start + row // PACK, pack * PACK + row % PACK
    inside = token < row_end
    out_offset = token.to(tl.int64)[:, None] * out_token + head[:, None] * out_head + dim[None, :]
    lse_offset = token.to(tl.int64) * lse_token + head * lse_head
    acc = tl.zeros([CHUNK, D], dtype=tl.float32)
    lse = tl.full([CHUNK], float("-inf"), dtype=tl.float32)
    if HAS_INITIAL:
        lse = tl.load(initial_lse_ptr + lse_offset, mask=inside, other=float("-inf"))
        acc = tl.load(initial_out_ptr + out_offset, mask=inside[:, None], other=0.0)
    for slot in range(first_slot, first_slot + tl.load(entry_ptr + NUM_SLOTS)):
        slot_row = (pack.to(tl.int64) * num_slots + slot) * (TILE_M * PACK) + row
        partial_lse = tl.load(partial_lse_ptr + slot_row, mask=inside, other=float("-inf"))
        partial_out = tl.load(
            partial_out_ptr + slot_row[:, None] * D + dim[None, :], mask=inside[:, None], other=0.0
        )
        most = tl.maximum(lse, partial_lse)
        shift = tl.where(most == float("-inf"), 0.0, most)
        ours, theirs = tl.exp(lse - shift), tl.exp(partial_lse - shift)
        total = tl.where(ours + theirs == 0.0, 1.0, ours + theirs)
        acc = acc * (ours / total)[:, None] + partial_out * (theirs / total)[:, None]
        lse = tl.where(most == float("-inf"), most, shift + tl.log(total))
    tl.store(out_ptr + out_offset, acc.to(out_ptr.dtype.element_ty), mask=inside[:, None])
    tl.store(lse_ptr + lse_offset, lse, mask=inside)


def forward(launches: Launches, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, schedule: TileSchedule,
            scale: float,
            config: TileConfig, *, packs_per_section: int, out: torch.Tensor, lse: torch.Tensor,
            initial: tuple[torch.Tensor, torch.Tensor] | None = None) -> None:
    """Writes `out` and `lse`. Rows that see no key: 0 and −inf.

    Args:
        schedule: row tiles of queries, in KV blocks of `config.block_n` keys.
        initial: (out float32, LSE) of other keys, to be merged with; may be `out` and `lse` themselves.
    """
    num_heads, head_dim, num_kv_heads = q.shape[1], q.shape[2], k.shape[1]
    pack = config.block_m // schedule.tile_m
    packs, num_groups, num_tiles = num_heads // pack, len(schedule.work_tiles), schedule.work_tiles.shape[1]
    split = schedule.num_slots > 0
    partial_out = launches.empty(packs if split else 0, schedule.num_slots, config.block_m, head_dim)
    partial_lse = launches.empty(*partial_out.shape[:-1])
    initial_out, initial_lse = initial if initial is not None else (partial_out, partial_lse)
    strides = out.stride(0), out.stride(1), lse.stride(0), lse.stride(1)
    if num_tiles == 0:
        return
    launches.launch(
        _forward, (num_tiles * packs,), q, columns_of(k, schedule.tile_n), columns_of(v, schedule.tile_n),
                    out, lse, initial_out,
        initial_lse, partial_out, partial_lse, schedule.work_tiles, schedule.block_ranges,
                    schedule.partial_masks, num_tiles,
        packs_per_section, packs // num_kv_heads, packs // num_groups, schedule.num_slots, q.stride(0),
                    q.stride(1), *strides,
        scale * LOG2_E.value, config.loop, initial is not None, split, head_dim, pack, schedule.tile_m,
                    schedule.tile_n, config.num_stages,
        num_warps=config.num_warps, num_stages=config.num_stages)
    if split:
        chunk = min(config.block_m, 32)
        launches.launch(
            combine_kernel, (schedule.splits.shape[1], packs, config.block_m // chunk), out, lse, initial_out,
                        initial_lse, partial_out,
            partial_lse, schedule.splits, schedule.splits.shape[1], packs // num_groups, schedule.num_slots,
                        *strides, initial is not None,
            head_dim, pack, schedule.tile_m, chunk)


def columns_of(x: torch.Tensor, tokens: int) -> TensorDescriptor:
    """A descriptor of so many tokens of one head at a time, of a tensor (T, heads, D) that lies so that heads
    and D are one axis."""
    num_tokens, num_heads, head_dim = x.shape
    return TensorDescriptor(x, [num_tokens, num_heads * head_dim], [x.stride(0), 1], [tokens, head_dim])
