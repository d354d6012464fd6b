"""Pipelines of the Hopper kernels: barriers and rings of buffers, what all kernels share, and the producer of
the forward kernel.

A ring has several stages of shared memory. A stage's `full` barrier completes when its tile has arrived; its
`empty` barrier completes when every warp group has finished reading the stage. The n-th tile is in stage n %
stages, and the parity of n // stages distinguishes successive uses of a stage. In the forward kernel, named
barriers signal empty stages.

In the forward kernel a tile of K and V consists of PARTS arbitrary KV blocks of the schedule, so that the
tensor cores get whole tiles even if blocks are short. A work tile's parts are, in this order: empty ones, so
that tiles are whole and there is at least one; partial blocks; full blocks. Where a tile is one block, the
work tile's narrow block comes last, and only its first columns are loaded.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.language.core import _aggregate as aggregate

from longca.ops.band.sm90.compat import load_tile, reinterpret
from longca.ops.band.sm90.named_barriers import K_EMPTY, V_EMPTY, stage_threads, wait_at
from longca.ops.band.sm90.tile_scheduler import (
    FULL_START,
    NARROW,
    NUM_FULL,
    PARTIAL_END,
    PARTIAL_START,
    RANGE,
    ROW_START,
    WG_ROWS,
    WorkTileQueue,
    first_lane,
    query_tile_of,
    range_of,
    take_ticket,
)

# instead of a partial-block mask: all columns are visible, none is
FULL, EMPTY = gl.constexpr(-1), gl.constexpr(-2)
# Fields of a block's `info` in the backward kernels: its first column and its mask. The other two are not
# read.
COLUMN_FIELD, MASK_FIELD = gl.constexpr(0), gl.constexpr(1)
INFO = gl.constexpr(4)  # numbers of a block's `info`
RUN_OF_BITS = gl.constexpr("bmsk.clamp.b32 $0, $1, $2;")  # first bit, number of bits
SWIZZLE = gl.constexpr(64)  # contiguous elements of a row in shared memory


@gluon.jit
def barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    """COUNT barriers in shared memory, (COUNT, 1), each of which completes after so many arrivals."""
    bars = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for place in gl.static_range(COUNT):
        mbarrier.init(bars.index(place), count=ARRIVALS)
    return bars


@aggregate
class Handshake:
    """The two barriers of a buffer, or of each stage of a ring."""

    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor

    @gluon.constexpr_function
    def __init__(self, full, empty):
        self.full = full
        self.empty = empty


@gluon.jit
def hidden_zero(number):
    """A 0 that the compiler cannot infer.

    Added to the index of a loop-invariant buffer, it prevents hoisting of the descriptors of its parts: a
    matmul reads them from 63 uniform registers, and hoisted descriptors that do not fit would be reloaded
    from memory in each round.
    """
    return gl.inline_asm_elementwise(
        "mov.b32 $0, 0;", "=r,r", [number], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def read_mask(info, stage):
    """The partial-block mask of a stage's block, or FULL or EMPTY, for a consumer warp group. `info`: int32
    (stages, INFO)."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    return gl.max(info.index(stage).slice(MASK_FIELD, 1).load(layout), 0)


@gluon.jit
def is_visible(bounds, columns):
    """True where a row sees a column, (rows, columns). `bounds` packs [start, end) of a row as in
    `TileSchedule.partial_masks`."""
    start, end = bounds & 0xFFFF, bounds >> 16  # both bounds in one comparison
    return (columns[None, :] - start[:, None]).to(gl.uint32) < (end - start)[:, None].to(gl.uint32)


@gluon.jit
def seen_columns(bounds, like):
    """The bits of a thread's columns of `like` that its rows see, (rows, 4) int32.

    In the result of a warp-group matmul the four threads of a row share its columns: of each 8, thread t has
    the columns 2 t and 2 t + 1. So the visible columns of a thread are a run of bits, and each score costs
    one test and one selection.

    Args:
        bounds: (rows,) int32, the first column and the one after the last, in 16 bits each as in
            `TileSchedule.partial_masks`.
        like: a result of a warp-group matmul, (rows, columns): at most 128 columns.
    """
    layout: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(3, _by_thread(like).type.layout))
    bounds = gl.convert_layout(bounds, gl.SliceLayout(1, layout))[:, None]
    quarter = gl.arange(0, 4, layout=gl.SliceLayout(0, layout))[None, :]
    first, after = _place(bounds & 0xFFFF, quarter), _place(bounds >> 16, quarter)
    return gl.inline_asm_elementwise(RUN_OF_BITS, "=r,r,r",
                                     [first - 2 * quarter, gl.maximum(after - first, 0)], dtype=gl.int32,
                                     is_pure=True, pack=1)


@gluon.jit
def where_seen(x, bits, other):
    """x where a bit of `seen_columns` is set, and the other value elsewhere."""
    parts = _by_thread(x)
    layout: gl.constexpr = parts.type.layout
    eight = gl.arange(
        0, parts.shape[1], layout=gl.SliceLayout(0, gl.SliceLayout(2, gl.SliceLayout(3, layout)))
    )[None, :, None, None]
    two = gl.arange(0, 2, layout=gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, layout))))[
        None, None, None, :
    ]
    seen = (bits.expand_dims(1).expand_dims(3) >> eight * 2 + two & 1) != 0
    return gl.convert_layout(gl.where(seen, parts, other).reshape(x.shape), x.type.layout)


@gluon.jit
def own_sums(x):
    """The sum of each thread's columns of a row, (rows, 4)."""
    return gl.sum(gl.sum(_by_thread(x), 3), 1)


@gluon.jit
def _by_thread(x):
    """(rows, columns / 8, thread, 2): a thread's own columns are those of one index."""
    return x.reshape([x.shape[0], x.shape[1] // 8, 4, 2])


@gluon.jit
def _place(column, quarter):
    """The number of a thread's columns before a column, and 2 · quarter.

    Not max(column % 8 − 2 · quarter, 0): where a warp's rows have the same bound, CUDA 12.8's assembler adds
    instead (VIADDMNMX).
    """
    return (column >> 3) * 2 + gl.minimum(gl.maximum(column & 7, 2 * quarter), 2 * quarter + 2)


@gluon.jit
def store_rows_through_smem(
    buffer, x, row_start, row_end, pack, rows, x_ptr, x_token, x_head, PACK: gl.constexpr
):
    """Writes a warp group's rows through a buffer that is free by then (Q's), so that whole rows are written
    at once."""
    D: gl.constexpr = x.shape[1]
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    buffer.store(x.to(buffer.dtype))
    rows = gl.convert_layout(rows, gl.SliceLayout(1, layout))
    token, head = (row_start + rows // PACK).to(gl.int64), pack * PACK + rows % PACK
    offset = (token * x_token + head * x_head)[:, None] + gl.arange(0, D, layout=gl.SliceLayout(0, layout))[
        None, :
    ]
    gl.store(x_ptr + offset, buffer.load(layout), mask=(token < row_end)[:, None])


@aggregate
class ForwardPipeline:
    """The forward kernel's buffers and barriers: Q for each consumer group and queued work tile, rings of
    tiles of K and V."""

    q: gl.shared_memory_descriptor  # (queued work tiles · consumers, 64 / PACK, PACK, D)
    k: gl.shared_memory_descriptor  # (STAGES, tile, D)
    v: gl.shared_memory_descriptor
    work_tiles: WorkTileQueue
    q_bars: Handshake
    # a barrier for each stage; free stages are signalled at a named barrier
    k_full: gl.shared_memory_descriptor
    v_full: gl.shared_memory_descriptor

    @gluon.constexpr_function
    def __init__(self, q, k, v, work_tiles, q_bars, k_full, v_full):
        self.q = q
        self.k = k
        self.v = v
        self.work_tiles = work_tiles
        self.q_bars = q_bars
        self.k_full = k_full
        self.v_full = v_full


@gluon.jit
def parts_before(num_blocks, PARTS: gl.constexpr):
    """Empty parts of a work tile."""
    return gl.where(num_blocks == 0, PARTS, (PARTS - num_blocks % PARTS) % PARTS)


@gluon.jit
def _copy_block(desc, column, kv_head, full, boxes, place, BOXES: gl.constexpr, CHUNKS: gl.constexpr):
    for chunk in gl.static_range(CHUNKS):
        load_tile(desc, [column, kv_head, chunk * SWIZZLE], full, boxes.index(place + chunk * BOXES))


@gluon.jit
def _load_part(column, column_before, kv_head, count, k_desc, v_desc, k_boxes, v_boxes, k_full, v_full,
               CONSUMERS: gl.constexpr,
               PARTS: gl.constexpr, BOXES: gl.constexpr, CHUNKS: gl.constexpr, STAGES: gl.constexpr):
    """Loads part `count` of K; with the last part of a tile also its parts of V, whose stage is freed later
    than K's.

    Args:
        k_boxes, v_boxes: the rings as boxes of the descriptors' size: BOXES of them for the rows of a stage,
            in each chunk of columns.
    """
    BYTES: gl.constexpr = k_desc.block_type.nbytes * PARTS * CHUNKS
    part, stage = count % PARTS, count // PARTS % STAGES
    place = stage * (BOXES * CHUNKS)
    if part == 0:
        if count >= PARTS * STAGES:
            wait_at(K_EMPTY + stage, stage_threads(CONSUMERS))
        mbarrier.expect(k_full.index(stage), BYTES)
    _copy_block(k_desc, column, kv_head, k_full.index(stage), k_boxes, place + part, BOXES, CHUNKS)
    if part == PARTS - 1:
        if count >= PARTS * STAGES:
            wait_at(V_EMPTY + stage, stage_threads(CONSUMERS))
        mbarrier.expect(v_full.index(stage), BYTES)
        if PARTS == 2:
            _copy_block(v_desc, column_before, kv_head, v_full.index(stage), v_boxes, place, BOXES, CHUNKS)
        _copy_block(v_desc, column, kv_head, v_full.index(stage), v_boxes, place + part, BOXES, CHUNKS)


@gluon.jit
def _in_boxes(ring, desc, BOXES: gl.constexpr):
    """A ring of tiles as boxes of a descriptor: stage by stage, chunk of columns by chunk, BOXES for the rows
    of a stage."""
    shape: gl.constexpr = [
        ring.shape[0] * (ring.shape[2] // SWIZZLE) * BOXES,
        ring.shape[1] // BOXES,
        1,
        SWIZZLE,
    ]
    return reinterpret(ring, desc.dtype, shape, desc.layout)


@gluon.jit
def produce_kv_tiles(q_desc, k_desc, v_desc, k_narrow_desc, v_narrow_desc, pipeline, tables, grid,
                     counter_ptr, PACK: gl.constexpr,
                     CONSUMERS: gl.constexpr, QUEUE: gl.constexpr, PARTS: gl.constexpr,
                     NARROW_N: gl.constexpr, STAGES: gl.constexpr):
    """The producer warp: takes work tiles, the longest first, broadcasts them to the consumers, and loads.

    Args:
        k_narrow_desc, v_narrow_desc: of boxes of NARROW_N keys, if that is not 0.
        counter_ptr: int32 (1,), number of work tiles taken after each program's first.
    """
    BLOCK: gl.constexpr = k_desc.block_type.shape[0]
    CHUNKS: gl.constexpr = pipeline.k.shape[2] // SWIZZLE
    k_boxes, v_boxes = _in_boxes(pipeline.k, k_desc, PARTS), _in_boxes(pipeline.v, v_desc, PARTS)
    lane = gl.arange(0, 32, layout=gl.BlockedLayout([1], [32], [1], [0]))
    # parts and work tiles so far: stages and phases of the rings follow
    count, tile_count, column_before = 0, 0, 0
    item = gl.program_id(0)
    while item < grid.num_items:
        entry_ptr, pack = query_tile_of(item, tables.work_tiles, grid)
        ticket = take_ticket(counter_ptr, lane)
        narrow = gl.load(entry_ptr + NARROW) if NARROW_N else 0
        pipeline.work_tiles.send(entry_ptr, pack, tile_count, narrow)
        kv_head = pack // grid.packs_per_kv_head
        row, full_start = gl.load(entry_ptr + ROW_START), gl.load(entry_ptr + FULL_START)
        partial_start, partial_end = gl.load(entry_ptr + PARTIAL_START), gl.load(entry_ptr + PARTIAL_END)
        for wg in gl.static_range(CONSUMERS):
            place = tile_count % QUEUE * CONSUMERS + wg
            mbarrier.wait(pipeline.q_bars.empty.index(place), (tile_count // QUEUE & 1) ^ 1)
            mbarrier.expect(pipeline.q_bars.full.index(place), q_desc.block_type.nbytes)
            load_tile(
                q_desc,
                [row + wg * (WG_ROWS // PACK), pack * PACK, 0],
                pipeline.q_bars.full.index(place),
                pipeline.q.index(place),
            )
        for _ in range(parts_before(partial_end - partial_start + gl.load(entry_ptr + NUM_FULL), PARTS)):
            _load_part(0, column_before, kv_head, count, k_desc, v_desc, k_boxes, v_boxes, pipeline.k_full,
                       pipeline.v_full,
                       CONSUMERS, PARTS, PARTS, CHUNKS, STAGES)
            column_before = 0
            count += 1
        num_narrow = gl.minimum(narrow, 1) if NARROW_N else 0
        first_partial = partial_start + num_narrow
        for number in range(partial_end - full_start - num_narrow):
            # Triton 3.6 loses a loop-carried bound, so each round reads its own
            column, num_blocks, _ = range_of(
                number, full_start, first_partial, partial_end, tables.block_ranges
            )
            for _ in range(num_blocks):
                _load_part(column, column_before, kv_head, count, k_desc, v_desc, k_boxes, v_boxes,
                           pipeline.k_full, pipeline.v_full,
                           CONSUMERS, PARTS, PARTS, CHUNKS, STAGES)
                column_before = column
                column += BLOCK
                count += 1
        if NARROW_N:  # noqa: SIM102 - decided when compiling
            if narrow > 0:
                _load_part(gl.load(tables.block_ranges + partial_start * RANGE), 0, kv_head, count,
                           k_narrow_desc, v_narrow_desc,
                           _in_boxes(pipeline.k, k_narrow_desc, BLOCK // NARROW_N),
                           _in_boxes(pipeline.v, v_narrow_desc, BLOCK // NARROW_N),
                           pipeline.k_full, pipeline.v_full, CONSUMERS, PARTS, BLOCK // NARROW_N, CHUNKS,
                           STAGES)
                count += 1
        tile_count += 1
        item = first_lane(ticket, lane) + gl.num_programs(0)
    pipeline.work_tiles.send(tables.work_tiles, -1, tile_count)
    for place in range(gl.minimum(count // PARTS, STAGES)):  # no arrival is left at a named barrier
        wait_at(K_EMPTY + (count // PARTS - 1 - place) % STAGES, stage_threads(CONSUMERS))
        wait_at(V_EMPTY + (count // PARTS - 1 - place) % STAGES, stage_threads(CONSUMERS))
