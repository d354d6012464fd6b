"""The dK and dV kernel of band attention on Hopper, in Gluon, over row tiles of keys.

One persistent program runs on each multiprocessor. Its producer warp loads: K and V of a work tile stay in
shared memory, while blocks of Q and dO, with their LSE and delta, pass through a ring. Two consumer warp
groups hold 64 keys of a work tile each, with dK and dV in registers, and iterate over all blocks of queries.
Scores and their gradients are keys × queries, so that they enter the matmuls for dV and dK from registers.
Matmuls overlap with independent work: dP with the exponentials, dV with dS.

Shapes as in `sm90.forward`; blocks have ROWS rows, 64 or 128, which are ROWS / PACK queries of PACK heads.
"""

# Triton reads the types of fields as values
# pyright: reportInvalidTypeForm=false
# names are bound under conditions that are decided when compiling
# pyright: reportPossiblyUnboundVariable=false

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.core import _aggregate as aggregate

from longca.ops.band.sm90.compat import load_tile
from longca.ops.band.sm90.named_barriers import BLOCK_EMPTY, arrive_at, stage_threads, wait_at
from longca.ops.band.sm90.pipeline import (
    COLUMN_FIELD,
    EMPTY,
    FULL,
    INFO,
    MASK_FIELD,
    Handshake,
    barriers,
    is_visible,
    read_mask,
)
from longca.ops.band.sm90.tile_scheduler import (
    CONSUMERS,
    FROM_LAST,
    FULL_START,
    MESSAGE,
    PARTIAL_END,
    PARTIAL_START,
    ROW_START,
    WG_ROWS,
    KeyGrid,
    Scalar,
    Tables,
    WorkTileQueue,
    first_entries,
    first_lane,
    key_tile_of,
    next_range,
    range_of,
    scalar,
    take_ticket,
)


@aggregate
class KeyInputs:
    """TMA descriptors of the inputs."""

    q: tma.tensor_descriptor
    dout: tma.tensor_descriptor
    lse: tma.tensor_descriptor  # LSE · log2 e
    delta: tma.tensor_descriptor
    k: tma.tensor_descriptor
    v: tma.tensor_descriptor

    @gluon.constexpr_function
    def __init__(self, q, dout, lse, delta, k, v):
        self.q = q
        self.dout = dout
        self.lse = lse
        self.delta = delta
        self.k = k
        self.v = v


@aggregate
class KeyPipeline:
    """Buffers and barriers: K and V of one work tile, a ring of blocks of Q and dO, and the work tiles
    themselves."""

    k: gl.shared_memory_descriptor  # (CONSUMERS, 64, 1, D)
    v: gl.shared_memory_descriptor
    q: gl.shared_memory_descriptor  # (STAGES, ROWS / PACK, PACK, D)
    dout: gl.shared_memory_descriptor
    lse: gl.shared_memory_descriptor  # (STAGES, ROWS)
    delta: gl.shared_memory_descriptor
    info: gl.shared_memory_descriptor  # (STAGES, INFO)
    work_tiles: WorkTileQueue
    kv_bars: Handshake
    q_full: gl.shared_memory_descriptor  # Q, LSE and info have arrived
    dout_full: gl.shared_memory_descriptor  # dO and delta have arrived

    @gluon.constexpr_function
    def __init__(self, k, v, q, dout, lse, delta, info, work_tiles, kv_bars, q_full, dout_full):
        self.k = k
        self.v = v
        self.q = q
        self.dout = dout
        self.lse = lse
        self.delta = delta
        self.info = info
        self.work_tiles = work_tiles
        self.kv_bars = kv_bars
        self.q_full = q_full
        self.dout_full = dout_full


@aggregate
class DkdvOutputs:
    """Pointers and strides of dK and dV, and of the splits' partial results."""

    dk: gl.tensor
    dv: gl.tensor
    partial_dk: gl.tensor
    partial_dv: gl.tensor
    dk_token: Scalar
    dk_head: Scalar
    dv_token: Scalar
    dv_head: Scalar
    num_slots: Scalar

    @gluon.constexpr_function
    def __init__(self, dk, dv, partial_dk, partial_dv, dk_token, dk_head, dv_token, dv_head, num_slots):
        self.dk = dk
        self.dv = dv
        self.partial_dk = partial_dk
        self.partial_dv = partial_dv
        self.dk_token = scalar(dk_token)
        self.dk_head = scalar(dk_head)
        self.dv_token = scalar(dv_token)
        self.dv_head = scalar(dv_head)
        self.num_slots = scalar(num_slots)


@gluon.jit
def stats_offset(column, pack, stats_of_pack, PACK: gl.constexpr):
    """Offset of the LSE and delta of a block's rows, a multiple of 16 bytes in one of the shifted copies."""
    COPIES: gl.constexpr = 4 // PACK if PACK < 4 else 1
    return (
        pack * stats_of_pack
        + column % COPIES * (stats_of_pack // COPIES)
        + column // COPIES * (COPIES * PACK)
    )


@gluon.jit
def _load_block(
    column, mask, pack, stats_of_pack, count, inputs, pipeline, PACK: gl.constexpr, STAGES: gl.constexpr
):
    """Loads the `count`-th block of queries."""
    stage = count % STAGES
    field = gl.arange(0, INFO, layout=gl.BlockedLayout([1], [32], [1], [0]))
    stats = stats_offset(column, pack, stats_of_pack, PACK)
    if count >= STAGES:
        wait_at(BLOCK_EMPTY + stage, stage_threads(CONSUMERS))
    pipeline.info.index(stage).store(
        gl.where(field == COLUMN_FIELD, column, gl.where(field == MASK_FIELD, mask, pack))
    )
    mbarrier.arrive(pipeline.q_full.index(stage), count=1)
    mbarrier.expect(pipeline.q_full.index(stage), inputs.q.block_type.nbytes + inputs.lse.block_type.nbytes)
    load_tile(inputs.q, [column, pack * PACK, 0], pipeline.q_full.index(stage), pipeline.q.index(stage))
    load_tile(inputs.lse, [stats], pipeline.q_full.index(stage), pipeline.lse.index(stage))
    mbarrier.expect(
        pipeline.dout_full.index(stage), inputs.dout.block_type.nbytes + inputs.delta.block_type.nbytes
    )
    load_tile(
        inputs.dout, [column, pack * PACK, 0], pipeline.dout_full.index(stage), pipeline.dout.index(stage)
    )
    load_tile(inputs.delta, [stats], pipeline.dout_full.index(stage), pipeline.delta.index(stage))


@gluon.jit
def produce_query_blocks(inputs, pipeline, tables, grid, counter_ptr, packs_per_kv_head, stats_of_pack,
                         PACK: gl.constexpr,
                         STAGES: gl.constexpr, IN_ORDER: gl.constexpr):
    """The producer warp. A work tile without blocks gets an empty one.

    Args:
        counter_ptr: int32 (1,), number of items taken: those after each program's first, or with IN_ORDER
            all.
        IN_ORDER: as in `sm90.bwd_fused`: blocks go from the last column on or from the first, instead of
            partial ones first, and a work tile, a program's first one too, is taken only when it begins, so
            that all before it have begun.
    """
    BLOCK: gl.constexpr = pipeline.q.shape[1]
    lane = gl.arange(0, 32, layout=gl.BlockedLayout([1], [32], [1], [0]))
    count, tile_count = 0, 0
    item = gl.program_id(0)
    if IN_ORDER:
        item = first_lane(take_ticket(counter_ptr, lane), lane)
    while item < grid.num_items:
        entry_ptr, index, kv_head, head_round = key_tile_of(item, tables.work_tiles, grid)
        if not IN_ORDER:
            ticket = take_ticket(counter_ptr, lane)
        num_packs = packs_per_kv_head // grid.head_rounds
        first_pack = kv_head * packs_per_kv_head + head_round * num_packs
        pipeline.work_tiles.send(entry_ptr, first_pack, tile_count, index)
        row, full_start = gl.load(entry_ptr + ROW_START), gl.load(entry_ptr + FULL_START)
        partial_start, partial_end = gl.load(entry_ptr + PARTIAL_START), gl.load(entry_ptr + PARTIAL_END)
        mbarrier.wait(pipeline.kv_bars.empty, (tile_count & 1) ^ 1)
        mbarrier.expect(pipeline.kv_bars.full, 2 * CONSUMERS * inputs.k.block_type.nbytes)
        for wg in gl.static_range(CONSUMERS):
            load_tile(inputs.k, [row + wg * WG_ROWS, kv_head, 0], pipeline.kv_bars.full, pipeline.k.index(wg))
            load_tile(inputs.v, [row + wg * WG_ROWS, kv_head, 0], pipeline.kv_bars.full, pipeline.v.index(wg))
        for pack in range(first_pack, first_pack + num_packs):
            full, partial = first_entries(full_start, partial_start, partial_end, IN_ORDER)
            for number in range(gl.maximum(partial_end - full_start, 1)):
                if IN_ORDER:
                    column, num_blocks, mask, full, partial = next_range(full, partial, full_start,
                                                                         partial_start, partial_end,
                                                                         tables.block_ranges, BLOCK, IN_ORDER)
                else:
                    column, num_blocks, mask = range_of(
                        number, full_start, partial_start, partial_end, tables.block_ranges
                    )
                for _ in range(gl.where(full_start == partial_end, 1, num_blocks)):
                    _load_block(column, gl.where(full_start == partial_end, EMPTY, mask), pack, stats_of_pack,
                                count, inputs, pipeline,
                                PACK, STAGES)
                    column += -BLOCK if IN_ORDER == FROM_LAST else BLOCK
                    count += 1
        tile_count += 1
        if IN_ORDER:  # decided when compiling
            item = first_lane(take_ticket(counter_ptr, lane), lane)
        else:
            item = first_lane(ticket, lane) + gl.num_programs(0)
    pipeline.work_tiles.send(tables.work_tiles, -1, tile_count)
    for place in range(gl.minimum(count, STAGES)):  # no arrival is left at a named barrier
        wait_at(BLOCK_EMPTY + (count - 1 - place) % STAGES, stage_threads(CONSUMERS))


@gluon.jit
def bounds_of_keys(mask, masks_ptr, rows, BLOCK: gl.constexpr):
    """The visible queries of a block of BLOCK queries for each key, in the format of `is_visible`."""
    return gl.load(masks_ptr + mask * (CONSUMERS * WG_ROWS) + rows, mask=mask >= 0,
                   other=gl.where(mask == FULL, BLOCK << 16, 0))


@gluon.jit
def _epilogue(x, buffer, x_ptr, partial_ptr, x_token, x_head, tile, kv_head, num_slots, wg: gl.constexpr):
    """Writes a consumer group's rows of dK or dV to the result or to a slot.

    Rows of the result pass through the group's buffer of V if types are equal; those of a split are written
    as float32 to its slot.
    """
    D: gl.constexpr = x.shape[1]
    SAME: gl.constexpr = x_ptr.dtype.element_ty == buffer.dtype
    layout: gl.constexpr = (
        gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0]) if SAME else x.type.layout
    )
    if (tile.slot < 0) | (tile.row_start == tile.row_end):  # a work tile of no rows has nothing to store
        if SAME:
            buffer.store(x.to(buffer.dtype))
            values = buffer.load(layout)
        else:
            values = x.to(x_ptr.dtype.element_ty)
        token = tile.row_start + wg * WG_ROWS + gl.arange(0, WG_ROWS, layout=gl.SliceLayout(1, layout))
        offset = (token.to(gl.int64) * x_token + kv_head * x_head)[:, None] + gl.arange(
            0, D, layout=gl.SliceLayout(0, layout)
        )[None, :]
        gl.store(x_ptr + offset, values, mask=(token < tile.row_end)[:, None])
    else:
        row = wg * WG_ROWS + gl.arange(0, WG_ROWS, layout=gl.SliceLayout(1, x.type.layout))
        slot_row = ((kv_head.to(gl.int64) * num_slots + tile.slot) * (CONSUMERS * WG_ROWS) + row) * D
        gl.store(
            partial_ptr
            + slot_row[:, None]
            + gl.arange(0, D, layout=gl.SliceLayout(0, x.type.layout))[None, :],
            x,
        )


@gluon.jit
def _consume(
    pipeline, masks_ptr, outputs, packs_per_kv_head, scale, scale_log2, wg: gl.constexpr, PACK: gl.constexpr
):
    """A consumer group: its 64 keys of every work tile."""
    STAGES: gl.constexpr = pipeline.q.shape[0]
    D: gl.constexpr = pipeline.q.shape[3]
    ROWS: gl.constexpr = pipeline.lse.shape[1]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    sum_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, sum_layout, 2)
    across: gl.constexpr = gl.SliceLayout(0, layout)
    k, v = pipeline.k.index(wg).reshape([WG_ROWS, D]), pipeline.v.index(wg).reshape([WG_ROWS, D])
    rows = wg * WG_ROWS + gl.arange(0, WG_ROWS, layout=gl.SliceLayout(1, layout))
    columns = gl.arange(0, ROWS, layout=across)
    count, tile_count = 0, 0
    tile = pipeline.work_tiles.receive(0)
    while tile.pack >= 0:
        kv_head = tile.pack // packs_per_kv_head
        num_blocks = gl.maximum(tile.partial_end - tile.partial_start + tile.num_full, 1) * packs_per_kv_head
        dk, dv = (
            gl.zeros([WG_ROWS, D], gl.float32, sum_layout),
            gl.zeros([WG_ROWS, D], gl.float32, sum_layout),
        )
        mbarrier.wait(pipeline.kv_bars.full, tile_count & 1)
        for _ in range(num_blocks):
            stage, phase = count % STAGES, (count // STAGES) & 1
            q, dout = (
                pipeline.q.index(stage).reshape([ROWS, D]),
                pipeline.dout.index(stage).reshape([ROWS, D]),
            )
            mbarrier.wait(pipeline.q_full.index(stage), phase)
            # before the matmul, during which loads from shared memory are slow
            lse = pipeline.lse.index(stage).load(across)
            s = warpgroup_mma(k, q.permute((1, 0)), gl.zeros([WG_ROWS, ROWS], gl.float32, layout),
                              use_acc=False, is_async=True)
            mask = read_mask(pipeline.info, stage)
            mbarrier.wait(pipeline.dout_full.index(stage), phase)
            dp = warpgroup_mma(v, dout.permute((1, 0)), gl.zeros([WG_ROWS, ROWS], gl.float32, layout),
                               use_acc=False, is_async=True)
            bounds = bounds_of_keys(mask, masks_ptr, rows, ROWS // PACK)
            s = warpgroup_mma_wait(1, deps=[s])
            p = gl.exp2(s * scale_log2 - lse[None, :])
            num_rows = tile.row_end - tile.row_start
            if (mask != FULL) | (num_rows < CONSUMERS * WG_ROWS):
                p = gl.where(is_visible(gl.where(rows < num_rows, bounds, 0), columns // PACK), p, 0.0)
            p_operand = gl.convert_layout(p.to(q.dtype), operand)
            delta = pipeline.delta.index(stage).load(across)
            dv = warpgroup_mma(p_operand, dout, dv, is_async=True)
            dp = warpgroup_mma_wait(1, deps=[dp])
            ds = p * (dp - delta[None, :])
            ds_operand = gl.convert_layout(ds.to(q.dtype), operand)
            dk = warpgroup_mma(ds_operand, q, dk, is_async=True)
            dk, dv, p_operand, ds_operand = warpgroup_mma_wait(0, deps=[dk, dv, p_operand, ds_operand])
            arrive_at(BLOCK_EMPTY + stage, stage_threads(CONSUMERS))
            count += 1
        _epilogue(dv, v, outputs.dv, outputs.partial_dv, outputs.dv_token, outputs.dv_head, tile, kv_head,
                  outputs.num_slots, wg)
        _epilogue(dk * scale, v, outputs.dk, outputs.partial_dk, outputs.dk_token, outputs.dk_head, tile,
                  kv_head, outputs.num_slots, wg)
        fence_async_shared()
        mbarrier.arrive(pipeline.kv_bars.empty, count=1)
        tile_count += 1
        tile = pipeline.work_tiles.receive(tile_count)


@gluon.jit(do_not_specialize=["num_slots", "num_tiles", "num_items", "kv_heads_per_section",
                              "kv_heads_per_group", "packs_per_kv_head",
                              "stats_of_pack"])
def dkdv_kernel(q_desc, dout_desc, lse_desc, delta_desc, k_desc, v_desc, counter_ptr, work_tiles_ptr,
                block_ranges_ptr, partial_masks_ptr,
                dk_ptr, dv_ptr, partial_dk_ptr, partial_dv_ptr, dk_token, dk_head, dv_token, dv_head,
                num_slots, num_tiles, num_items,
                kv_heads_per_section, kv_heads_per_group, packs_per_kv_head, stats_of_pack, scale, scale_log2,
                PACK: gl.constexpr,
                STAGES: gl.constexpr):
    """
    Args:
        q_desc, dout_desc: (T, H, D) in boxes of (ROWS / PACK, PACK, D).
        lse_desc, delta_desc: float32 (H / PACK · stats_of_pack,), of `triton.preprocess` for TMA, in boxes of
            ROWS.
        k_desc, v_desc: (S, G, D) in boxes of (64, 1, D).
        counter_ptr: int32 (1,), zero.
        work_tiles_ptr, block_ranges_ptr, partial_masks_ptr: of a `TileSchedule` of 128 keys in blocks of ROWS
            / PACK queries.
        partial_dk_ptr, partial_dv_ptr: float32 (G, num_slots, 128, D), for splits.
        num_tiles: work tiles of a head group.
    """
    D: gl.constexpr = q_desc.block_type.shape[2]
    k = gl.allocate_shared_memory(k_desc.dtype, [CONSUMERS, WG_ROWS, 1, D], k_desc.layout)
    v = gl.allocate_shared_memory(v_desc.dtype, [CONSUMERS, WG_ROWS, 1, D], v_desc.layout)
    ROWS: gl.constexpr = lse_desc.block_type.shape[0]
    q = gl.allocate_shared_memory(q_desc.dtype, [STAGES, ROWS // PACK, PACK, D], q_desc.layout)
    dout = gl.allocate_shared_memory(q_desc.dtype, [STAGES, ROWS // PACK, PACK, D], dout_desc.layout)
    lse = gl.allocate_shared_memory(gl.float32, [STAGES, ROWS], lse_desc.layout)
    delta = gl.allocate_shared_memory(gl.float32, [STAGES, ROWS], delta_desc.layout)
    info = gl.allocate_shared_memory(gl.int32, [STAGES, INFO], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    messages = gl.allocate_shared_memory(gl.int32, [2, MESSAGE], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    kv_bars = Handshake(barriers(1, 1).index(0), barriers(1, CONSUMERS).index(0))
    q_full, dout_full = barriers(STAGES, 2), barriers(STAGES, 1)
    work_tiles = WorkTileQueue(messages, barriers(2, 1), barriers(2, CONSUMERS))
    fence_async_shared()
    pipeline = KeyPipeline(k, v, q, dout, lse, delta, info, work_tiles, kv_bars, q_full, dout_full)
    inputs = KeyInputs(q_desc, dout_desc, lse_desc, delta_desc, k_desc, v_desc)
    tables = Tables(work_tiles_ptr, block_ranges_ptr, partial_masks_ptr)
    outputs = DkdvOutputs(
        dk_ptr, dv_ptr, partial_dk_ptr, partial_dv_ptr, dk_token, dk_head, dv_token, dv_head, num_slots
    )
    grid = KeyGrid(num_tiles, num_items, kv_heads_per_section, 1, 1, kv_heads_per_group)
    gl.warp_specialize([
        (_consume, (pipeline, partial_masks_ptr, outputs, packs_per_kv_head, scale, scale_log2, 0, PACK)),
        (_consume, (pipeline, partial_masks_ptr, outputs, packs_per_kv_head, scale, scale_log2, 1, PACK)),
        (produce_query_blocks, (inputs, pipeline, tables, grid, counter_ptr, packs_per_kv_head, stats_of_pack, PACK, STAGES, False)),  # noqa: E501
    ], [4, 1], [240, 24])
