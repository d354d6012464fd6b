"""The forward kernel of band attention on Hopper, in Gluon, over the tables of `tables.schedule`.

One or two persistent programs run on each multiprocessor; their warps have roles:

    producer warp      takes work tiles, loads Q, K and V by TMA into rings of shared memory
    consumer groups    one to three warp groups; each holds 64 rows of a work tile and all read the same tiles of K and V

A consumer group starts Q·Kᵀ of the next tile and P·V of this one together; its softmax runs beside the
matmuls of the other group. It waits for P·V in the middle of the softmax, rescales a row only if its maximum
has increased, releases a stage warp by warp, and reduces the sums of a row only at the end. Of the narrow
block of a work tile, the last one, only NARROW_N columns take part.
Shapes: T queries, S keys, H query heads, G KV heads, D head dim; q and out are (T, H, D), k and v (S, G, D),
LSE is (T, H). A pack is the PACK query heads of one KV head that share a tile.
"""  # noqa: E501

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from longca.ops.band.sm90.compat import block_barrier
from longca.ops.band.sm90.fwd_outputs import ForwardOutputs, write_rows
from longca.ops.band.sm90.named_barriers import K_EMPTY, V_EMPTY, arrive_at, stage_threads
from longca.ops.band.sm90.pipeline import (
    ForwardPipeline,
    Handshake,
    barriers,
    own_sums,
    parts_before,
    produce_kv_tiles,
    seen_columns,
    where_seen,
)
from longca.ops.band.sm90.tile_scheduler import MESSAGE, RANGE, WG_ROWS, QueryGrid, Tables, WorkTileQueue

TO_BF16, TO_FP16 = gl.constexpr("cvt.rn.bf16x2.f32 $0, $2, $1;"), gl.constexpr("cvt.rn.f16x2.f32 $0, $2, $1;")
# Two columns of a row, without a branch, so that the assembler interleaves them with the exponentials.
SCALE_IF_NEEDED = gl.constexpr("""{ .reg .pred needed; setp.neu.f32 needed, $4, 0f3F800000; @needed mul.f32 $0, $0, $4;
    @needed mul.f32 $1, $1, $4; }""")  # noqa: E501


@gluon.jit
def _bounds_of_part(part, padding, partial_start, partial_end, block, ranges_ptr, row_masks_ptr, MASK_ROWS: gl.constexpr):  # noqa: E501
    """The visible columns of a work tile's n-th part for each row: none if empty, all if full."""
    entry = partial_start + part - padding
    is_partial = (part >= padding) & (entry < partial_end)
    mask = gl.load(ranges_ptr + entry * RANGE + 1, mask=is_partial, other=0)
    return gl.load(row_masks_ptr + mask * MASK_ROWS, mask=is_partial, other=gl.where(part < padding, 0, block << 16))  # noqa: E501


@gluon.jit
def _bounds_of(number, padding, partial_start, partial_end, ranges_ptr, row_masks_ptr, PARTS: gl.constexpr, BLOCK: gl.constexpr,  # noqa: E501
               MASK_ROWS: gl.constexpr):
    """The visible columns of the first and the last part of the n-th tile of K and V, for each row."""
    first = _bounds_of_part(number * PARTS, padding, partial_start, partial_end, BLOCK, ranges_ptr, row_masks_ptr, MASK_ROWS)  # noqa: E501
    if PARTS == 1:
        return first, first
    return first, _bounds_of_part(number * PARTS + 1, padding, partial_start, partial_end, BLOCK, ranges_ptr, row_masks_ptr, MASK_ROWS)  # noqa: E501


@gluon.jit
def _mask_scores(s, bounds, PARTS: gl.constexpr):
    """The scores, −inf for hidden columns."""
    seen = seen_columns(bounds[0], s)
    if PARTS == 2:  # a part has half of each thread's columns
        seen |= seen_columns(bounds[1], s) << s.shape[1] // 8
    return where_seen(s, seen, float("-inf"))


@gluon.jit
def _packed(p, dtype: gl.constexpr):
    """P rounded to 16 bits, two neighbouring columns in an int32: (rows, columns / 2).

    The compiler carries 16-bit values across rounds in halves of registers, and would unpack and pack them in
    each round.
    """
    low, high = p.reshape([p.shape[0], p.shape[1] // 2, 2]).split()
    return gl.inline_asm_elementwise(TO_BF16 if dtype == gl.bfloat16 else TO_FP16, "=r,r,r", [low, high], dtype=gl.int32, is_pure=False,  # noqa: E501
                                     pack=1)


@gluon.jit
def _unpacked(packed, dtype: gl.constexpr, layout: gl.constexpr):
    """P in the layout of a matmul operand. This computes nothing and only relabels registers."""
    low, high = packed.to(gl.int16).to(dtype, bitcast=True), (packed >> 16).to(gl.int16).to(dtype, bitcast=True)  # noqa: E501
    return gl.convert_layout(gl.join(low, high).reshape([packed.shape[0], packed.shape[1] * 2]), layout)


@gluon.jit
def _shift_of(row_max, scale_log2, GUARD: gl.constexpr):
    """The number that is subtracted from a row's scores, in base 2."""
    shift = row_max * scale_log2
    if GUARD:  # a row that has seen no key yet: −inf − (−inf) must not arise
        shift = gl.where(row_max == float("-inf"), 0.0, shift)
    return shift


@gluon.jit
def _exponentials(s, shift, scale_log2):
    """(P, its sums as of `own_sums`)"""
    p = gl.exp2(s * scale_log2 - gl.convert_layout(shift, gl.SliceLayout(1, s.type.layout))[:, None])
    return p, own_sums(p)


@gluon.jit
def _scaled_if_needed(acc, factor):
    """acc · factor, without work where a row's factor is 1."""
    return gl.inline_asm_elementwise(SCALE_IF_NEEDED, "=f,=f,0,1,f,f", [acc, factor], dtype=gl.float32, is_pure=False, pack=2)  # noqa: E501


@gluon.jit
def _first_rows(ring, stage, ROWS: gl.constexpr):
    """The first rows of a stage's tile, or all."""
    return ring.index(stage) if ring.shape[1] == ROWS else ring.index(stage).slice(0, ROWS)


@gluon.jit
def _start_qk(q, pipeline, count, COLUMNS: gl.constexpr):
    """Starts Q·Kᵀ of the first columns of tile `count`. Q comes from registers: K and what is loaded
    meanwhile keep shared memory busy.
    """
    STAGES: gl.constexpr = pipeline.k.shape[0]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    stage = count % STAGES
    mbarrier.wait(pipeline.k_full.index(stage), (count // STAGES) & 1)
    operand = gl.convert_layout(q, gl.DotOperandLayout(0, layout, 2)) if isinstance(q, gl.tensor) else q
    return warpgroup_mma(operand, _first_rows(pipeline.k, stage, COLUMNS).permute((1, 0)),
                         gl.zeros([WG_ROWS, COLUMNS], gl.float32, layout), use_acc=False, is_async=True)


@gluon.jit
def _start_pv(p, acc, pipeline, count):
    """Starts acc + P·V of tile `count`, of the columns that P has."""
    STAGES: gl.constexpr = pipeline.v.shape[0]
    stage = count % STAGES
    mbarrier.wait(pipeline.v_full.index(stage), (count // STAGES) & 1)
    return warpgroup_mma(p, _first_rows(pipeline.v, stage, p.shape[1]), acc, is_async=True)


@gluon.jit
def _finish_pv(p, acc, pipeline, count, CONSUMERS: gl.constexpr):
    """acc + P·V of tile `count`, a work tile's last one."""
    operand = _unpacked(p, pipeline.k.dtype, gl.DotOperandLayout(0, acc.type.layout, 2))
    acc = _start_pv(operand, acc, pipeline, count)
    acc, operand = warpgroup_mma_wait(0, deps=[acc, operand])
    arrive_at(V_EMPTY + count % pipeline.v.shape[0], stage_threads(CONSUMERS))
    return acc


@gluon.jit
def _attend_tile(bounds, count, q, pipeline, p, acc, row_max, row_sum, scale_log2, MASKED: gl.constexpr, CONSUMERS: gl.constexpr,  # noqa: E501
                 PARTS: gl.constexpr, COLUMNS: gl.constexpr):
    """Computes Q·Kᵀ of tile `count` beside P·V of tile `count − 1`, then the softmax of tile `count`, of its
    first columns."""
    STAGES: gl.constexpr = pipeline.k.shape[0]
    DTYPE: gl.constexpr = pipeline.k.dtype
    operand = _unpacked(p, DTYPE, gl.DotOperandLayout(0, acc.type.layout, 2))
    s = _start_qk(q, pipeline, count, COLUMNS)
    acc = _start_pv(operand, acc, pipeline, count - 1)
    # warps wait for their matmuls now anyway; else the compiler has them meet before the next ones
    block_barrier()
    s = warpgroup_mma_wait(1, deps=[s])
    arrive_at(K_EMPTY + count % STAGES, stage_threads(CONSUMERS))
    if MASKED:
        s = _mask_scores(s, bounds, PARTS)
    row_max_before = row_max
    row_max = gl.maximum(row_max, gl.convert_layout(gl.max(s, 1), row_max.type.layout))
    shift = _shift_of(row_max, scale_log2, MASKED)
    rescale = gl.exp2(row_max_before * scale_log2 - shift)
    left, right = s.reshape([s.shape[0], 2, s.shape[1] // 2]).permute((0, 2, 1)).split()
    p_left, sum_left = _exponentials(left, shift, scale_log2)
    acc, operand = warpgroup_mma_wait(0, deps=[acc, operand])  # its registers are free only now
    arrive_at(V_EMPTY + (count - 1) % STAGES, stage_threads(CONSUMERS))
    p_right, sum_right = _exponentials(right, shift, scale_log2)
    factor = gl.convert_layout(rescale, gl.SliceLayout(1, acc.type.layout))[:, None]
    acc = acc * factor if MASKED else _scaled_if_needed(acc, factor)
    layout: gl.constexpr = row_sum.type.layout
    row_sum = row_sum * gl.convert_layout(rescale, gl.SliceLayout(1, layout))[:, None] + gl.convert_layout(sum_left, layout)  # noqa: E501
    row_sum += gl.convert_layout(sum_right, layout)
    next_p = gl.join(p_left, p_right).permute((0, 2, 1)).reshape(s.shape)
    return _packed(gl.convert_layout(next_p, s.type.layout), DTYPE), acc, row_max, row_sum


@gluon.jit
def _consume(pipeline, tables, outputs, scale_log2, wg: gl.constexpr, PACK: gl.constexpr, CONSUMERS: gl.constexpr,  # noqa: E501
             QUEUE: gl.constexpr, PARTS: gl.constexpr, NARROW_N: gl.constexpr, HAS_INITIAL: gl.constexpr):
    """A consumer group: its 64 rows of every work tile."""
    STAGES: gl.constexpr = pipeline.k.shape[0]
    TILE: gl.constexpr = pipeline.k.shape[1]
    D: gl.constexpr = pipeline.k.shape[2]
    BLOCK: gl.constexpr = TILE // PARTS
    MASK_ROWS: gl.constexpr = CONSUMERS * WG_ROWS // PACK
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    rows = wg * WG_ROWS + gl.arange(0, WG_ROWS, layout=gl.SliceLayout(1, s_layout))
    row_masks = tables.partial_masks + rows // PACK
    count, tile_count = 0, 0  # tiles of K and V, and work tiles, so far
    tile = pipeline.work_tiles.receive(0)
    while tile.pack >= 0:
        q_place = tile_count % QUEUE * CONSUMERS + wg
        q_buffer = pipeline.q.index(q_place).reshape([WG_ROWS, D])
        partial_start = tile.partial_start + gl.minimum(tile.narrow, 1) if NARROW_N else tile.partial_start
        padding = parts_before(tile.partial_end - partial_start + tile.num_full, PARTS)
        num_tiles = (padding + tile.partial_end - partial_start + tile.num_full) // PARTS
        num_masked = (padding + tile.partial_end - partial_start + PARTS - 1) // PARTS
        mbarrier.wait(pipeline.q_bars.full.index(q_place), tile_count // QUEUE & 1)
        q = q_buffer if CONSUMERS == 3 else q_buffer.load(gl.DotOperandLayout(0, s_layout, 2))
        s = _start_qk(q, pipeline, count, TILE)
        block_barrier()
        bounds = _bounds_of(0, padding, partial_start, tile.partial_end, tables.block_ranges, row_masks, PARTS, BLOCK, MASK_ROWS)  # noqa: E501
        next_bounds = _bounds_of(1, padding, partial_start, tile.partial_end, tables.block_ranges, row_masks, PARTS, BLOCK, MASK_ROWS)  # noqa: E501
        s = warpgroup_mma_wait(0, deps=[s])
        arrive_at(K_EMPTY + count % STAGES, stage_threads(CONSUMERS))
        s = _mask_scores(s, bounds, PARTS)
        row_max = gl.max(s, 1)
        p, row_sum = _exponentials(s, _shift_of(row_max, scale_log2, True), scale_log2)
        p = _packed(p, pipeline.k.dtype)
        acc = gl.zeros([WG_ROWS, D], gl.float32, out_layout)
        count += 1
        for number in range(1, num_masked):
            bounds = next_bounds
            next_bounds = _bounds_of(number + 1, padding, partial_start, tile.partial_end, tables.block_ranges, row_masks, PARTS, BLOCK,  # noqa: E501
                                     MASK_ROWS)
            p, acc, row_max, row_sum = _attend_tile(bounds, count, q, pipeline, p, acc, row_max, row_sum, scale_log2, True, CONSUMERS,  # noqa: E501
                                                    PARTS, TILE)
            count += 1
        for _ in range(gl.maximum(num_masked, 1), num_tiles):
            p, acc, row_max, row_sum = _attend_tile(bounds, count, q, pipeline, p, acc, row_max, row_sum, scale_log2, False, CONSUMERS,  # noqa: E501
                                                    PARTS, TILE)
            count += 1
        if NARROW_N:
            # a round like those before, but of fewer columns: its values have other shapes than a loop
            # carries
            if tile.narrow > 0:
                # read again: if the loops' Q is used here, the assembler waits earlier for P·V in them
                narrow_q = q_buffer if CONSUMERS == 3 else q_buffer.load(gl.DotOperandLayout(0, s_layout, 2))
                seen = gl.load(row_masks + (tile.narrow - 1) * MASK_ROWS)
                narrow_p, acc, row_max, row_sum = _attend_tile((seen, seen), count, narrow_q, pipeline, p, acc, row_max, row_sum,  # noqa: E501
                                                               scale_log2, True, CONSUMERS, 1, NARROW_N)
                acc = _finish_pv(narrow_p, acc, pipeline, count, CONSUMERS)
                count += 1
            else:
                acc = _finish_pv(p, acc, pipeline, count - 1, CONSUMERS)
        else:
            acc = _finish_pv(p, acc, pipeline, count - 1, CONSUMERS)
        row_sum = gl.convert_layout(gl.sum(row_sum, 1), row_max.type.layout)
        write_rows(acc, row_max, row_sum, tile, rows, q_buffer, outputs, scale_log2, PACK, CONSUMERS * WG_ROWS, HAS_INITIAL)  # noqa: E501
        fence_async_shared()
        mbarrier.arrive(pipeline.q_bars.empty.index(q_place), count=1)
        tile_count += 1
        tile = pipeline.work_tiles.receive(tile_count)


@gluon.jit(do_not_specialize=["lse_token", "num_slots", "num_tiles", "num_items", "packs_per_section", "packs_per_kv_head",  # noqa: E501
                              "packs_per_group"])
def forward_kernel(q_desc, k_desc, v_desc, k_narrow_desc, v_narrow_desc, counter_ptr, work_tiles_ptr, block_ranges_ptr, partial_masks_ptr,  # noqa: E501
                   out_ptr, lse_ptr, initial_out_ptr, initial_lse_ptr, partial_out_ptr, partial_lse_ptr, out_token, out_head, lse_token,  # noqa: E501
                   lse_head, num_slots, num_tiles, num_items, packs_per_section, packs_per_kv_head, packs_per_group, scale_log2,  # noqa: E501
                   D: gl.constexpr, PACK: gl.constexpr, CONSUMERS: gl.constexpr, PARTS: gl.constexpr, NARROW_N: gl.constexpr,  # noqa: E501
                   HAS_INITIAL: gl.constexpr, STAGES: gl.constexpr):
    """
    Args:
        q_desc: (T, H, D) in boxes of (64 / PACK, PACK, D).
        k_desc, v_desc: (S, G, D) in boxes of (KV block, 1, 64).
        k_narrow_desc, v_narrow_desc: the same in boxes of (NARROW_N, 1, 64), if NARROW_N is not 0.
        counter_ptr: int32 (1,), zero.
        work_tiles_ptr, block_ranges_ptr, partial_masks_ptr: of a `TileSchedule` with tile_m = 64 · CONSUMERS
            / PACK.
        partial_out_ptr, partial_lse_ptr: float32 (packs, num_slots, 64 · CONSUMERS, D) and (packs, num_slots,
            64 · CONSUMERS), for splits.
        num_tiles: work tiles of a head group.
        num_items: packs · num_tiles.
        PACK: query heads of a KV head that share a tile.
        CONSUMERS: consumer warp groups.
        PARTS: KV blocks that make a tile.
        NARROW_N: columns that are computed of a work tile's narrow block, a multiple of 32. 0: all. Else
            PARTS is 1.
        HAS_INITIAL: the result is merged with the initial (out, LSE).
    """
    TILE: gl.constexpr = k_desc.block_type.shape[0] * PARTS
    QUEUE: gl.constexpr = CONSUMERS  # work tiles with loaded Q
    tile_layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    q = gl.allocate_shared_memory(q_desc.dtype, [QUEUE * CONSUMERS, WG_ROWS // PACK, PACK, D], q_desc.layout)
    k = gl.allocate_shared_memory(k_desc.dtype, [STAGES, TILE, D], tile_layout)
    v = gl.allocate_shared_memory(v_desc.dtype, [STAGES, TILE, D], tile_layout)
    messages = gl.allocate_shared_memory(gl.int32, [2, MESSAGE], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    q_bars = Handshake(barriers(QUEUE * CONSUMERS, 1), barriers(QUEUE * CONSUMERS, 1))
    k_full, v_full = barriers(STAGES, 1), barriers(STAGES, 1)
    work_tiles = WorkTileQueue(messages, barriers(2, 1), barriers(2, CONSUMERS))
    pipeline = ForwardPipeline(q, k, v, work_tiles, q_bars, k_full, v_full)
    fence_async_shared()
    tables = Tables(work_tiles_ptr, block_ranges_ptr, partial_masks_ptr)
    outputs = ForwardOutputs(out_ptr, lse_ptr, initial_out_ptr, initial_lse_ptr, partial_out_ptr, partial_lse_ptr, out_token, out_head,  # noqa: E501
                             lse_token, lse_head, num_slots)
    grid = QueryGrid(num_tiles, num_items, packs_per_section, packs_per_kv_head, packs_per_group)
    if CONSUMERS == 1:
        gl.warp_specialize([
            (_consume, (pipeline, tables, outputs, scale_log2, 0, PACK, CONSUMERS, QUEUE, PARTS, NARROW_N, HAS_INITIAL)),  # noqa: E501
            (produce_kv_tiles, (q_desc, k_desc, v_desc, k_narrow_desc, v_narrow_desc, pipeline, tables, grid, counter_ptr, PACK, CONSUMERS,  # noqa: E501
                                QUEUE, PARTS, NARROW_N, STAGES)),
        ], [1], [24])
    elif CONSUMERS == 2:
        gl.warp_specialize([
            (_consume, (pipeline, tables, outputs, scale_log2, 0, PACK, CONSUMERS, QUEUE, PARTS, NARROW_N, HAS_INITIAL)),  # noqa: E501
            (_consume, (pipeline, tables, outputs, scale_log2, 1, PACK, CONSUMERS, QUEUE, PARTS, NARROW_N, HAS_INITIAL)),  # noqa: E501
            (produce_kv_tiles, (q_desc, k_desc, v_desc, k_narrow_desc, v_narrow_desc, pipeline, tables, grid, counter_ptr, PACK, CONSUMERS,  # noqa: E501
                                QUEUE, PARTS, NARROW_N, STAGES)),
        ], [4, 1], [240, 24])
    else:
        gl.warp_specialize([
            (_consume, (pipeline, tables, outputs, scale_log2, 0, PACK, CONSUMERS, QUEUE, PARTS, NARROW_N, HAS_INITIAL)),  # noqa: E501
            (_consume, (pipeline, tables, outputs, scale_log2, 1, PACK, CONSUMERS, QUEUE, PARTS, NARROW_N, HAS_INITIAL)),  # noqa: E501
            (_consume, (pipeline, tables, outputs, scale_log2, 2, PACK, CONSUMERS, QUEUE, PARTS, NARROW_N, HAS_INITIAL)),  # noqa: E501
            (produce_kv_tiles, (q_desc, k_desc, v_desc, k_narrow_desc, v_narrow_desc, pipeline, tables, grid, counter_ptr, PACK, CONSUMERS,  # noqa: E501
                                QUEUE, PARTS, NARROW_N, STAGES)),
        ], [4, 4, 1], [160, 160, 24])
