"""The dQ kernel of band attention on Hopper, in Gluon, over row tiles of queries.

One persistent program runs on each multiprocessor. Its producer warp loads. Two consumer warp groups hold 64
rows of a work tile each, with dQ in registers, and iterate over all KV blocks. A block's S and dP overlap
with dS · K of the previous block.

Shapes as in `sm90.forward`; KV blocks have BLOCK keys, 64 or 128.
"""

# Triton reads the types of fields as values
# pyright: reportInvalidTypeForm=false

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
from longca.ops.band.sm90.pipeline import (
    COLUMN_FIELD,
    EMPTY,
    FULL,
    INFO,
    Handshake,
    barriers,
    is_visible,
    read_mask,
    store_rows_through_smem,
)
from longca.ops.band.sm90.tile_scheduler import (
    CONSUMERS,
    FULL_START,
    MESSAGE,
    PARTIAL_END,
    PARTIAL_START,
    ROW_START,
    WG_ROWS,
    QueryGrid,
    Scalar,
    Tables,
    WorkTileQueue,
    first_lane,
    query_tile_of,
    range_of,
    scalar,
    take_ticket,
)

QUEUE = gl.constexpr(2)  # work tiles with loaded Q and dO


@aggregate
class QueryInputs:
    """TMA descriptors of the inputs."""

    q: tma.tensor_descriptor
    dout: tma.tensor_descriptor
    k: tma.tensor_descriptor
    v: tma.tensor_descriptor

    @gluon.constexpr_function
    def __init__(self, q, dout, k, v):
        self.q = q
        self.dout = dout
        self.k = k
        self.v = v


@aggregate
class QueryPipeline:
    """Buffers and barriers: Q and dO of the queued work tiles, a ring of blocks of K and V, and the work
    tiles themselves."""

    q: gl.shared_memory_descriptor  # (QUEUE · CONSUMERS, 64 / PACK, PACK, D)
    dout: gl.shared_memory_descriptor
    k: gl.shared_memory_descriptor  # (STAGES, BLOCK, 1, D)
    v: gl.shared_memory_descriptor
    info: gl.shared_memory_descriptor  # (STAGES, INFO)
    work_tiles: WorkTileQueue
    row_bars: Handshake  # of Q and dO
    k_full: gl.shared_memory_descriptor  # K and info have arrived
    v_full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor

    @gluon.constexpr_function
    def __init__(self, q, dout, k, v, info, work_tiles, row_bars, k_full, v_full, empty):
        self.q = q
        self.dout = dout
        self.k = k
        self.v = v
        self.info = info
        self.work_tiles = work_tiles
        self.row_bars = row_bars
        self.k_full = k_full
        self.v_full = v_full
        self.empty = empty


@aggregate
class DqOutputs:
    """Pointers and strides of dQ, of the initial dQ that it is added to, and of the splits' partial
    results."""

    dq: gl.tensor
    initial_dq: gl.tensor
    partial_dq: gl.tensor
    dq_token: Scalar
    dq_head: Scalar
    num_slots: Scalar

    @gluon.constexpr_function
    def __init__(self, dq, initial_dq, partial_dq, dq_token, dq_head, num_slots):
        self.dq = dq
        self.initial_dq = initial_dq
        self.partial_dq = partial_dq
        self.dq_token = scalar(dq_token)
        self.dq_head = scalar(dq_head)
        self.num_slots = scalar(num_slots)


@gluon.jit
def _epilogue(dq, buffer, outputs, tile, rows, PACK: gl.constexpr, HAS_INITIAL: gl.constexpr):
    """Writes a consumer group's rows: to the result, through its buffer of Q if types are equal; for a split
    as float32 to its slot."""
    D: gl.constexpr = dq.shape[1]
    layout: gl.constexpr = dq.type.layout
    dims = gl.arange(0, D, layout=gl.SliceLayout(0, layout))[None, :]
    if (tile.slot < 0) | (tile.row_start == tile.row_end):  # a work tile of no rows has nothing to store
        token, head = (tile.row_start + rows // PACK).to(gl.int64), tile.pack * PACK + rows % PACK
        offset = (
            gl.convert_layout(token * outputs.dq_token + head * outputs.dq_head, gl.SliceLayout(1, layout))[
                :, None
            ]
            + dims
        )
        inside = gl.convert_layout(token < tile.row_end, gl.SliceLayout(1, layout))[:, None]
        if HAS_INITIAL:
            dq += gl.load(outputs.initial_dq + offset, mask=inside, other=0.0)
        if outputs.dq.dtype.element_ty == buffer.dtype:
            store_rows_through_smem(buffer, dq, tile.row_start, tile.row_end, tile.pack, rows, outputs.dq,
                                    outputs.dq_token,
                                    outputs.dq_head, PACK)
        else:
            gl.store(outputs.dq + offset, dq.to(outputs.dq.dtype.element_ty), mask=inside)
    else:
        slot_row = (tile.pack.to(gl.int64) * outputs.num_slots + tile.slot) * (CONSUMERS * WG_ROWS) + rows
        gl.store(
            outputs.partial_dq + gl.convert_layout(slot_row, gl.SliceLayout(1, layout))[:, None] * D + dims,
            dq,
        )


@gluon.jit
def _consume(pipeline, lse_ptr, delta_ptr, num_tokens, masks_ptr, outputs, scale, scale_log2,
             wg: gl.constexpr, PACK: gl.constexpr,
             HAS_INITIAL: gl.constexpr):
    """A consumer group: its 64 rows of every work tile."""
    STAGES: gl.constexpr = pipeline.k.shape[0]
    BLOCK: gl.constexpr = pipeline.k.shape[1]
    D: gl.constexpr = pipeline.k.shape[3]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    sum_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, sum_layout, 2)
    rows = wg * WG_ROWS + gl.arange(0, WG_ROWS, layout=gl.SliceLayout(1, layout))
    columns = gl.arange(0, BLOCK, layout=gl.SliceLayout(0, layout))
    count, tile_count = 0, 0
    tile = pipeline.work_tiles.receive(0)
    while tile.pack >= 0:
        queued = tile_count % QUEUE
        q = pipeline.q.index(queued * CONSUMERS + wg).reshape([WG_ROWS, D])
        dout = pipeline.dout.index(queued * CONSUMERS + wg).reshape([WG_ROWS, D])
        stats = (tile.pack.to(gl.int64) * num_tokens + tile.row_start) * PACK + rows
        lse, delta = gl.load(lse_ptr + stats), gl.load(delta_ptr + stats)
        num_blocks = gl.maximum(tile.partial_end - tile.partial_start + tile.num_full, 1)
        dq = gl.zeros([WG_ROWS, D], gl.float32, sum_layout)
        # before the first block: zeros, times its own keys
        ds_before = gl.zeros([WG_ROWS, BLOCK], pipeline.k.dtype, operand)
        mbarrier.wait(pipeline.row_bars.full.index(queued), tile_count // QUEUE & 1)
        for number in range(num_blocks):
            stage, phase = count % STAGES, (count // STAGES) & 1
            stage_before = gl.where(number == 0, stage, (count + STAGES - 1) % STAGES)
            mbarrier.wait(pipeline.k_full.index(stage), phase)
            k = pipeline.k.index(stage).reshape([BLOCK, D])
            s = warpgroup_mma(q, k.permute((1, 0)), gl.zeros([WG_ROWS, BLOCK], gl.float32, layout),
                              use_acc=False, is_async=True)
            mask = read_mask(pipeline.info, stage)
            mbarrier.wait(pipeline.v_full.index(stage), phase)
            v = pipeline.v.index(stage).reshape([BLOCK, D])
            dp = warpgroup_mma(dout, v.permute((1, 0)), gl.zeros([WG_ROWS, BLOCK], gl.float32, layout),
                               use_acc=False, is_async=True)
            dq = warpgroup_mma(
                ds_before, pipeline.k.index(stage_before).reshape([BLOCK, D]), dq, is_async=True
            )
            bounds = gl.load(masks_ptr + mask * (CONSUMERS * WG_ROWS // PACK) + rows // PACK, mask=mask >= 0,
                             other=gl.where(mask == FULL, BLOCK << 16, 0))
            s = warpgroup_mma_wait(2, deps=[s])
            p = gl.exp2(s * scale_log2 - lse[:, None])
            if mask != FULL:
                p = gl.where(is_visible(bounds, columns), p, 0.0)
            dp = warpgroup_mma_wait(1, deps=[dp])
            ds = p * (dp - delta[:, None])
            ds_next = gl.convert_layout(ds.to(pipeline.k.dtype), operand)
            dq, ds_before = warpgroup_mma_wait(0, deps=[dq, ds_before])
            if number > 0:
                mbarrier.arrive(pipeline.empty.index(stage_before), count=1)
            ds_before = ds_next
            count += 1
        last_stage = (count + STAGES - 1) % STAGES
        dq = warpgroup_mma(ds_before, pipeline.k.index(last_stage).reshape([BLOCK, D]), dq, is_async=True)
        dq, ds_before = warpgroup_mma_wait(0, deps=[dq, ds_before])
        mbarrier.arrive(pipeline.empty.index(last_stage), count=1)
        _epilogue(dq * scale, q, outputs, tile, rows, PACK, HAS_INITIAL)
        fence_async_shared()
        mbarrier.arrive(pipeline.row_bars.empty.index(queued), count=1)
        tile_count += 1
        tile = pipeline.work_tiles.receive(tile_count)


@gluon.jit
def _load_block(column, mask, kv_head, count, inputs, pipeline, STAGES: gl.constexpr):
    """Loads the `count`-th block of K and V."""
    stage, phase = count % STAGES, (count // STAGES) & 1
    field = gl.arange(0, INFO, layout=gl.BlockedLayout([1], [32], [1], [0]))
    mbarrier.wait(pipeline.empty.index(stage), phase ^ 1)
    pipeline.info.index(stage).store(gl.where(field == COLUMN_FIELD, column, mask))
    mbarrier.arrive(pipeline.k_full.index(stage), count=1)
    mbarrier.expect(pipeline.k_full.index(stage), inputs.k.block_type.nbytes)
    load_tile(inputs.k, [column, kv_head, 0], pipeline.k_full.index(stage), pipeline.k.index(stage))
    mbarrier.expect(pipeline.v_full.index(stage), inputs.v.block_type.nbytes)
    load_tile(inputs.v, [column, kv_head, 0], pipeline.v_full.index(stage), pipeline.v.index(stage))


@gluon.jit
def _produce(inputs, pipeline, tables, grid, counter_ptr, PACK: gl.constexpr):
    """The producer warp. A work tile without blocks gets an empty one."""
    STAGES: gl.constexpr = pipeline.k.shape[0]
    lane = gl.arange(0, 32, layout=gl.BlockedLayout([1], [32], [1], [0]))
    count, tile_count = 0, 0
    item = gl.program_id(0)
    while item < grid.num_items:
        entry_ptr, pack = query_tile_of(item, tables.work_tiles, grid)
        ticket = take_ticket(counter_ptr, lane)
        pipeline.work_tiles.send(entry_ptr, pack, tile_count)
        kv_head, queued = pack // grid.packs_per_kv_head, tile_count % QUEUE
        row, full_start = gl.load(entry_ptr + ROW_START), gl.load(entry_ptr + FULL_START)
        partial_start, partial_end = gl.load(entry_ptr + PARTIAL_START), gl.load(entry_ptr + PARTIAL_END)
        mbarrier.wait(pipeline.row_bars.empty.index(queued), (tile_count // QUEUE & 1) ^ 1)
        mbarrier.expect(pipeline.row_bars.full.index(queued), 2 * CONSUMERS * inputs.q.block_type.nbytes)
        for wg in gl.static_range(CONSUMERS):
            token, place = row + wg * (WG_ROWS // PACK), queued * CONSUMERS + wg
            load_tile(
                inputs.q,
                [token, pack * PACK, 0],
                pipeline.row_bars.full.index(queued),
                pipeline.q.index(place),
            )
            load_tile(
                inputs.dout,
                [token, pack * PACK, 0],
                pipeline.row_bars.full.index(queued),
                pipeline.dout.index(place),
            )
        for number in range(gl.maximum(partial_end - full_start, 1)):
            column, num_blocks, mask = range_of(
                number, full_start, partial_start, partial_end, tables.block_ranges
            )
            for _ in range(gl.where(full_start == partial_end, 1, num_blocks)):
                _load_block(column, gl.where(full_start == partial_end, EMPTY, mask), kv_head, count, inputs,
                            pipeline, STAGES)
                column += pipeline.k.shape[1]
                count += 1
        tile_count += 1
        item = first_lane(ticket, lane) + gl.num_programs(0)
    pipeline.work_tiles.send(tables.work_tiles, -1, tile_count)


@gluon.jit(do_not_specialize=["num_slots", "num_tiles", "num_items", "packs_per_section", "packs_per_kv_head",
                              "packs_per_group",
                              "num_tokens"])
def dq_kernel(q_desc, dout_desc, k_desc, v_desc, counter_ptr, work_tiles_ptr, block_ranges_ptr,
              partial_masks_ptr, lse_ptr, delta_ptr,
              dq_ptr, initial_dq_ptr, partial_dq_ptr, dq_token, dq_head, num_slots, num_tiles, num_items,
              packs_per_section,
              packs_per_kv_head, packs_per_group, num_tokens, scale, scale_log2, PACK: gl.constexpr,
              HAS_INITIAL: gl.constexpr,
              STAGES: gl.constexpr):
    """
    Args:
        q_desc, dout_desc: (T, H, D) in boxes of (64 / PACK, PACK, D).
        k_desc, v_desc: (S, G, D) in boxes of (BLOCK, 1, D).
        counter_ptr: int32 (1,), zero.
        work_tiles_ptr, block_ranges_ptr, partial_masks_ptr: of a `TileSchedule` of 128 / PACK queries in
            blocks of BLOCK keys.
        lse_ptr, delta_ptr: of `triton.preprocess.preprocess`, float32 (H / PACK, num_tokens, PACK).
        initial_dq_ptr: float32, strided as dQ, with HAS_INITIAL: dQ is added to it.
        partial_dq_ptr: float32 (H / PACK, num_slots, 128, D), for splits.
        num_tiles: work tiles of a head group.
    """
    D: gl.constexpr = q_desc.block_type.shape[2]
    q = gl.allocate_shared_memory(q_desc.dtype, [QUEUE * CONSUMERS, WG_ROWS // PACK, PACK, D], q_desc.layout)
    dout = gl.allocate_shared_memory(
        q_desc.dtype, [QUEUE * CONSUMERS, WG_ROWS // PACK, PACK, D], dout_desc.layout
    )
    BLOCK: gl.constexpr = k_desc.block_type.shape[0]
    k = gl.allocate_shared_memory(k_desc.dtype, [STAGES, BLOCK, 1, D], k_desc.layout)
    v = gl.allocate_shared_memory(v_desc.dtype, [STAGES, BLOCK, 1, D], v_desc.layout)
    info = gl.allocate_shared_memory(gl.int32, [STAGES, INFO], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    messages = gl.allocate_shared_memory(gl.int32, [2, MESSAGE], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    row_bars = Handshake(barriers(QUEUE, 1), barriers(QUEUE, CONSUMERS))
    k_full, v_full, empty = barriers(STAGES, 2), barriers(STAGES, 1), barriers(STAGES, CONSUMERS)
    work_tiles = WorkTileQueue(messages, barriers(2, 1), barriers(2, CONSUMERS))
    fence_async_shared()
    pipeline = QueryPipeline(q, dout, k, v, info, work_tiles, row_bars, k_full, v_full, empty)
    inputs = QueryInputs(q_desc, dout_desc, k_desc, v_desc)
    tables = Tables(work_tiles_ptr, block_ranges_ptr, partial_masks_ptr)
    outputs = DqOutputs(dq_ptr, initial_dq_ptr, partial_dq_ptr, dq_token, dq_head, num_slots)
    grid = QueryGrid(num_tiles, num_items, packs_per_section, packs_per_kv_head, packs_per_group)
    gl.warp_specialize([
        (_consume, (pipeline, lse_ptr, delta_ptr, num_tokens, partial_masks_ptr, outputs, scale, scale_log2, 0, PACK, HAS_INITIAL)),  # noqa: E501
        (_consume, (pipeline, lse_ptr, delta_ptr, num_tokens, partial_masks_ptr, outputs, scale, scale_log2, 1, PACK, HAS_INITIAL)),  # noqa: E501
        (_produce, (inputs, pipeline, tables, grid, counter_ptr, PACK)),
    ], [4, 1], [240, 24])
