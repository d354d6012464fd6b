"""The fused backward kernel of band attention on Hopper: dQ, dK and dV in one pass, in Gluon, over row tiles of keys.

It works as `sm90.bwd_dkdv`, but an item is a work tile for one query head or for a few, one after the other, so that all programs work on
the same few heads, whose Q, dO and dQ then stay in the level-2 cache. All gradients are added to float32 sums in global memory. A further
warp, the reducer, does this with the tensor memory accelerator (TMA): Gluon's compiler has such additions, its library has no name for
them.

A round begins with a block's dP and ends with the next block's P, beside which dQ is computed. So no matmul is under way from one round to
the next: the assembler would run all of them one after the other. The last round of a work tile computes its own scores again, of no use.

dS reaches the other consumer group through shared memory: each group writes its keys' dS of block n to buffer n % 2, says so at a named
barrier, and waits for the other's. A group that has seen the other's block n knows that its dQ of block n − 1 is done, and may write block
n + 1 to that buffer.

Matmuls read shared memory nearly all the time, so that other loads from it take long. LSE and delta are loaded before the matmuls that they
are needed after.
"""

from triton._C.libtriton import ir
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.language.core import _aggregate as aggregate

from longca.ops.band.sm90.bwd_dkdv import KeyInputs, KeyPipeline, bounds_of_keys, produce_query_blocks
from longca.ops.band.sm90.named_barriers import BLOCK_EMPTY, DS_FULL, PART_FULL, arrive_at, stage_threads, wait_at
from longca.ops.band.sm90.pipeline import FULL, INFO, Handshake, barriers, hidden_zero, read_mask, seen_columns, where_seen
from longca.ops.band.sm90.tile_scheduler import (
    CONSUMERS,
    FROM_LAST,
    MESSAGE,
    WG_ROWS,
    KeyGrid,
    Tables,
    WorkTileQueue,
    first_entries,
    next_range,
    range_of,
)

# A bulk operation is complete to the thread that began it only; and it is another kind of access than the store that tells of it. With a
# relaxed store, sums were seen in another order. What waits only adds in memory, too, and reads nothing: an acquire would order no more.
PUBLISH = gl.constexpr("""cp.async.bulk.wait_group 0; fence.proxy.async.global; bar.warp.sync 0xffffffff;
    st.release.gpu.global.s32 [$1], $2; mov.b32 $0, 0;""")
LOOK = gl.constexpr("ld.relaxed.gpu.global.s32 $0, [$1];")
AWAIT = gl.constexpr("""{ .reg .pred more; again: ld.relaxed.gpu.global.s32 $0, [$1]; setp.gt.s32 more, $0, $2; @more bra again;
    fence.proxy.async.global; }""")
# Progress is the first row that an item is done with, less NOT_BEGUN, so that memory of zeros says that nothing is done.
NOT_BEGUN = gl.constexpr(1 << 29)  # more than any row
DQ_DONE, ALL_DONE = gl.constexpr(-(1 << 30)), gl.constexpr(-(1 << 30) - 1)  # instead of a row: all of dQ is done, and dK too


@aggregate
class SumTiles:
    """Buffers by which consumer groups hand parts of gradients to the reducer warp, one for each group."""

    tiles: gl.shared_memory_descriptor  # float32 (CONSUMERS, 64, 1, D / 2)
    empty: gl.shared_memory_descriptor  # a barrier for each; that a buffer is full is said at a named one

    @gluon.constexpr_function
    def __init__(self, tiles, empty):
        self.tiles = tiles
        self.empty = empty


@aggregate
class Sums:
    """TMA descriptors of the sums in global memory."""

    dq: tma.tensor_descriptor
    dk: tma.tensor_descriptor
    dv: tma.tensor_descriptor

    @gluon.constexpr_function
    def __init__(self, dq, dk, dv):
        self.dq = dq
        self.dk = dk
        self.dv = dv


@aggregate
class DqOrder:
    """Pointers to what makes additions to dQ come in one order: `TileSchedule.waits` and `wait_ranges`, and each item's progress."""

    waits: gl.tensor
    wait_ranges: gl.tensor
    progress: gl.tensor

    @gluon.constexpr_function
    def __init__(self, waits, wait_ranges, progress):
        self.waits = waits
        self.wait_ranges = wait_ranges
        self.progress = progress


# ---- Reducer warp ----


@builtin
def async_add(tensor_desc, coord, src, _semantic=None):
    """Starts to add a buffer of shared memory to a tensor. Each element is added atomically, in no order. `tma.store_wait` waits until the
    buffer is read."""
    coord = _semantic._convert_to_ir_values(coord, require_i64=False)
    _semantic.builder.create_async_tma_reduce(ir.DESCRIPTOR_REDUCE_KIND.ADD, tensor_desc.handle, coord, src.handle)


@gluon.jit
def _publish(progress_ptr, row):
    """Waits until all that this warp has begun to add is in memory, then tells others how far it has come."""
    gl.inline_asm_elementwise(PUBLISH, "=r,l,r", [progress_ptr.to(gl.int64), row - NOT_BEGUN], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def _await(progress_ptr, row):
    """Waits until another item's progress has come down to `row`."""
    gl.inline_asm_elementwise(AWAIT, "=r,l,r", [progress_ptr.to(gl.int64), row - NOT_BEGUN], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def _look(progress_ptr):
    """Another item's progress. The warp goes on until the number is needed."""
    return gl.inline_asm_elementwise(LOOK, "=r,l", [progress_ptr.to(gl.int64)], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def _wait_entry(wait, end, waits_ptr):
    """(first row, item or −1) of an entry of `waits`."""
    return gl.load(waits_ptr + wait * 2, mask=wait < end, other=DQ_DONE), gl.load(waits_ptr + wait * 2 + 1, mask=wait < end, other=-1)


@gluon.jit
def _await_rows(wait, end, bottom, other, seen, row, waits_ptr, progress_ptr):
    """Waits until the work tiles that come before this one are done with the rows from `row` on: those above have been waited for.

    Args:
        bottom, other: the entry `wait` of `waits`.
        seen: that item's progress, a while ago.

    Returns the entry of `waits` to go on with: (wait, bottom, other).
    """
    if (other >= 0) & (seen > gl.maximum(row, bottom) - NOT_BEGUN):
        _await(progress_ptr + other, gl.maximum(row, bottom))
    while (bottom > row) & (wait + 1 < end):
        wait += 1
        bottom, other = _wait_entry(wait, end, waits_ptr)
        if other >= 0:
            _await(progress_ptr + other, gl.maximum(row, bottom))
    return wait, bottom, other


@gluon.jit
def _add_parts(desc, rows, step: gl.constexpr, head, half, half_step: gl.constexpr, sums, is_first, STORES: gl.constexpr):
    """Adds each consumer group's next part: group n's to the rows from `rows + n · step` on, and to the half `half + n · half_step` of the
    columns. With STORES, what is first there is stored instead."""
    for wg in gl.static_range(CONSUMERS):
        wait_at(PART_FULL + wg, stage_threads(1))
        tile = sums.tiles.index(wg)
        if STORES:
            if is_first:
                tma.async_copy_shared_to_global(desc, [rows + wg * step, head, (half + wg * half_step) * tile.shape[2]], tile)
            else:
                async_add(desc, [rows + wg * step, head, (half + wg * half_step) * tile.shape[2]], tile)
        else:
            async_add(desc, [rows + wg * step, head, (half + wg * half_step) * tile.shape[2]], tile)
    for wg in gl.static_range(CONSUMERS):
        tma.store_wait(CONSUMERS - 1 - wg)
        mbarrier.arrive(sums.empty.index(wg), count=1)


@gluon.jit
def _reduce(desc, sums, work_tiles, block_ranges_ptr, order, grid, heads_per_item, IN_ORDER: gl.constexpr, STORES: gl.constexpr):
    """The reducer warp: goes over the same blocks as the producer, and adds what the consumer groups hand over: halves of each block's dQ,
    head by head, then each group's rows of dV and of dK, a half of the columns at a time.

    Args:
        IN_ORDER: work tiles add to a row of dQ one after the other, in the order of `TileSchedule.work_tiles`, so that sums are the same in
            every run; else in any order. A work tile goes from the last row to the first, or from the first, and then rows count backwards
            (row r is −r). It publishes in `progress` how far it has come with each head: the first row that it is done with, DQ_DONE after
            all of dQ, ALL_DONE at its end. `TileSchedule.waits` says for which work tiles it has to wait. To dV and dK, items add in the
            order of their heads. An item that others wait for began earlier, and the first of all waits for nobody: so there is no
            deadlock.
        STORES: memory holds no zeros. An item that waits for no other stores, which needs `TileSchedule.stores_first` and an order.
    """
    tile_count = 0
    tile = work_tiles.receive_blocks(0)
    while tile.pack >= 0:
        first_head = tile.pack  # one head in a pack
        item = first_head // heads_per_item
        kv_head = item // grid.head_rounds
        range_ptr = order.wait_ranges + (kv_head // grid.kv_heads_per_group * grid.num_tiles + tile.index) * 2
        progress_ptr = order.progress + first_head * grid.num_tiles
        for head in range(first_head, first_head + heads_per_item):
            head_ptr = order.progress + head * grid.num_tiles
            wait, wait_end, bottom, other = 0, 0, 0, -1
            full, partial = first_entries(tile.full_start, tile.partial_start, tile.partial_end, IN_ORDER)
            if IN_ORDER:
                wait, wait_end = gl.load(range_ptr), gl.load(range_ptr + 1)
                bottom, other = _wait_entry(wait, wait_end, order.waits)
            for number in range(gl.maximum(tile.partial_end - tile.full_start, 1)):
                if IN_ORDER:
                    column, num_blocks, _, full, partial = next_range(full, partial, tile.full_start, tile.partial_start, tile.partial_end,
                                                                      block_ranges_ptr, WG_ROWS, IN_ORDER)
                else:
                    column, num_blocks, _ = range_of(number, tile.full_start, tile.partial_start, tile.partial_end, block_ranges_ptr)
                for _ in range(gl.where(tile.full_start == tile.partial_end, 1, num_blocks)):
                    if IN_ORDER:
                        place = column if IN_ORDER == FROM_LAST else -WG_ROWS - column
                        seen = _look(head_ptr + gl.maximum(other, 0))
                        _publish(head_ptr + tile.index, place + WG_ROWS)
                        wait, bottom, other = _await_rows(wait, wait_end, bottom, other, seen, place, order.waits, head_ptr)
                    is_first = (other < 0) & (tile.full_start < tile.partial_end)  # an item without blocks adds nothing somewhere
                    _add_parts(desc.dq, column, 0, head, 0, 1, sums, is_first, STORES)
                    column += -WG_ROWS if IN_ORDER == FROM_LAST else WG_ROWS
            if IN_ORDER:
                _publish(head_ptr + tile.index, DQ_DONE)
        if IN_ORDER:  # noqa: SIM102 - decided when compiling
            if item % grid.head_rounds > 0:  # dK and dV of the heads before
                _await(progress_ptr - grid.num_tiles + tile.index, ALL_DONE)
        for half in gl.static_range(2):
            _add_parts(desc.dv, tile.row_start, WG_ROWS, kv_head, half, 0, sums, item % grid.head_rounds == 0, STORES)
        for half in gl.static_range(2):
            _add_parts(desc.dk, tile.row_start, WG_ROWS, kv_head, half, 0, sums, item % grid.head_rounds == 0, STORES)
        if IN_ORDER:
            _publish(progress_ptr + (heads_per_item - 1) * grid.num_tiles + tile.index, ALL_DONE)
        tile_count += 1
        tile = work_tiles.receive_blocks(tile_count)


# ---- Consumer groups ----


@gluon.jit
def _start_product(rows, columns):
    """Starts rows · columnsᵀ: (64, D) each."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WG_ROWS, 16])
    return warpgroup_mma(rows, columns.permute((1, 0)), gl.zeros([WG_ROWS, WG_ROWS], gl.float32, layout), use_acc=False, is_async=True)


@gluon.jit
def _start_dq(ds, k_halves, zero, count, wg: gl.constexpr):
    """Starts half of the columns of block `count`'s dQ: two matmuls, over the keys of each consumer group."""
    WIDTH: gl.constexpr = k_halves.shape[2]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    place = (count & 1) * CONSUMERS
    dq = gl.zeros([WG_ROWS, WIDTH], gl.float32, layout)
    dq = warpgroup_mma(ds.index(place).permute((1, 0)), k_halves.index(wg + zero), dq, use_acc=False, is_async=True)
    return warpgroup_mma(ds.index(place + 1).permute((1, 0)), k_halves.index(2 + wg + zero), dq, is_async=True)


@gluon.jit
def _masked_p(s, lse, bounds, mask, num_rows, rows, scale_log2):
    """P = exp2(S · scale · log2 e − LSE · log2 e), keys × queries, 0 where a key is hidden or past the work tile's end."""
    p = gl.exp2(s * scale_log2 - lse[None, :])
    if (mask != FULL) | (num_rows < CONSUMERS * WG_ROWS):
        p = where_seen(p, seen_columns(gl.where(rows < num_rows, bounds, 0), p), 0.0)
    return p


@gluon.jit
def _await_ds(count, number, wg: gl.constexpr, BEGIN: gl.constexpr):
    """Waits for the other group's dS of block `count`, the `number`-th of a work tile.

    The second group does it at the beginning of a work tile's first round, and else, like the first group always, before dQ. So it stays
    a part of a round behind, and a group's exponentials and stores run beside the other's matmuls.
    """
    if ((number == 0) & (wg == 1)) == BEGIN:
        wait_at(DS_FULL + count % 2 * 2 + (1 - wg), 256)


@gluon.jit
def _hand_over(part, sums, count, wg: gl.constexpr):
    """Hands a part of a gradient (rows, columns), the group's `count`-th, to the reducer warp.

    A thread of a warp-group matmul has 2 of each 8 neighbouring columns. Those of 32 columns lie together in the buffer and in the sums
    (`_finish_rows` in `sm90.launch` takes them apart again), so that a thread writes 16 bytes at a time and 8 threads, of two rows,
    meet in no bank.
    """
    ROWS: gl.constexpr = part.shape[0]
    COLUMNS: gl.constexpr = part.shape[1]
    mbarrier.wait(sums.empty.index(wg), (count & 1) ^ 1)
    tile = sums.tiles.index(wg).reshape([ROWS, COLUMNS])
    tile.store(part.reshape([ROWS, COLUMNS // 32, 4, 4, 2]).permute((0, 1, 3, 2, 4)).reshape([ROWS, COLUMNS]))
    fence_async_shared()
    arrive_at(PART_FULL + wg, stage_threads(1))


@gluon.jit
def _hand_over_halves(x, sums, count, wg: gl.constexpr):
    left, right = x.reshape([x.shape[0], 2, x.shape[1] // 2]).permute((0, 2, 1)).split()
    _hand_over(left, sums, count, wg)
    _hand_over(right, sums, count + 1, wg)


@gluon.jit
def _consume(pipeline, ds_buffers, sums, masks_ptr, heads_per_item, scale_log2, wg: gl.constexpr):
    """A consumer group: its 64 keys of every work tile.

    Args:
        ds_buffers: (2 · CONSUMERS, 64, 64), two for each group.
    """
    STAGES: gl.constexpr = pipeline.q.shape[0]
    D: gl.constexpr = pipeline.q.shape[3]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WG_ROWS, 16])
    sum_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, sum_layout, 2)
    across: gl.constexpr = gl.SliceLayout(0, layout)
    rows = wg * WG_ROWS + gl.arange(0, WG_ROWS, layout=gl.SliceLayout(1, layout))
    k_halves = pipeline.k._reinterpret(pipeline.k.dtype, [CONSUMERS * 2, WG_ROWS, D // 2], gl.NVMMASharedLayout(128, 16, 2))
    count, tile_count = 0, 0
    tile = pipeline.work_tiles.receive(0)
    while tile.pack >= 0:
        dk, dv = gl.zeros([WG_ROWS, D], gl.float32, sum_layout), gl.zeros([WG_ROWS, D], gl.float32, sum_layout)
        num_rows = tile.row_end - tile.row_start
        mbarrier.wait(pipeline.kv_bars.full, tile_count & 1)
        stage = count % STAGES
        mbarrier.wait(pipeline.q_full.index(stage), (count // STAGES) & 1)
        s = _start_product(pipeline.k.index(wg).reshape([WG_ROWS, D]), pipeline.q.index(stage).reshape([WG_ROWS, D]))
        mask = read_mask(pipeline.info, stage)
        bounds = bounds_of_keys(mask, masks_ptr, rows, 1)
        s = warpgroup_mma_wait(0, deps=[s])
        p = _masked_p(s, pipeline.lse.index(stage).load(across), bounds, mask, num_rows, rows, scale_log2)
        num_blocks = gl.maximum(tile.partial_end - tile.partial_start + tile.num_full, 1) * heads_per_item
        for number in range(num_blocks):
            stage, phase = count % STAGES, (count // STAGES) & 1
            zero = hidden_zero(count)
            k, v = pipeline.k.index(wg).reshape([WG_ROWS, D]), pipeline.v.index(wg + zero).reshape([WG_ROWS, D])
            q, dout = pipeline.q.index(stage).reshape([WG_ROWS, D]), pipeline.dout.index(stage).reshape([WG_ROWS, D])
            _await_ds(count, number, wg, True)
            mbarrier.wait(pipeline.dout_full.index(stage), phase)
            delta = pipeline.delta.index(stage).load(across)
            dp = _start_product(v, dout)
            p_operand = gl.convert_layout(p.to(q.dtype), operand)
            dv = warpgroup_mma(p_operand, dout, dv, is_async=True)
            dp = warpgroup_mma_wait(1, deps=[dp])
            ds = (p * (dp - delta[None, :])).to(q.dtype)
            ds_buffers.index(count % 2 * CONSUMERS + wg).store(ds)
            fence_async_shared()
            arrive_at(DS_FULL + count % 2 * 2 + wg, 256)
            ds_operand = gl.convert_layout(ds, operand)
            dk = warpgroup_mma(ds_operand, q, dk, is_async=True)
            following = gl.where(number + 1 < num_blocks, count + 1, count)  # after the last block its own scores again, of no use
            stage = following % STAGES
            mbarrier.wait(pipeline.q_full.index(stage), (following // STAGES) & 1)
            lse = pipeline.lse.index(stage).load(across)
            dv, p_operand = warpgroup_mma_wait(1, deps=[dv, p_operand])
            s = _start_product(k, pipeline.q.index(stage).reshape([WG_ROWS, D]))
            mask = read_mask(pipeline.info, stage)
            bounds = bounds_of_keys(mask, masks_ptr, rows, 1)
            _await_ds(count, number, wg, False)
            gl.thread_barrier()
            dq = _start_dq(ds_buffers, k_halves, zero, count, wg)
            s, dk, ds_operand = warpgroup_mma_wait(2, deps=[s, dk, ds_operand])
            p = _masked_p(s, lse, bounds, mask, num_rows, rows, scale_log2)
            arrive_at(BLOCK_EMPTY + count % STAGES, stage_threads(CONSUMERS))
            dq = warpgroup_mma_wait(0, deps=[dq])
            _hand_over(dq, sums, count, wg)
            count += 1
        mbarrier.arrive(pipeline.kv_bars.empty, count=1)
        _hand_over_halves(dv, sums, count, wg)
        _hand_over_halves(dk, sums, count, wg)
        tile_count += 1
        tile = pipeline.work_tiles.receive(tile_count)


@gluon.jit(do_not_specialize=["num_tiles", "num_items", "kv_heads_per_section", "kv_heads_per_group", "heads_per_kv_head",
                              "stats_of_head", "heads_per_item"])
def fused_kernel(q_desc, dout_desc, lse_desc, delta_desc, k_desc, v_desc, dq_desc, dk_desc, dv_desc, counter_ptr, work_tiles_ptr,
                 block_ranges_ptr, partial_masks_ptr, waits_ptr, wait_ranges_ptr, progress_ptr, num_tiles, num_items, kv_heads_per_section,
                 kv_heads_per_group, heads_per_kv_head, stats_of_head, heads_per_item, scale_log2, IN_ORDER: gl.constexpr,
                 STORES: gl.constexpr, STAGES: gl.constexpr):
    """
    Args: as of `sm90.bwd_dkdv.dkdv_kernel` with one head in a block, and
        dq_desc, dk_desc, dv_desc: float32 (T, H, D) and (S, G, D), zero unless STORES, in boxes of (64, 1, D / 2): the sums, without the
            scale and with columns in the order of `_hand_over`.
        heads_per_item: a divisor of heads_per_kv_head.
        IN_ORDER: as in `_reduce`, which then needs waits_ptr, wait_ranges_ptr (of `TileSchedule`) and progress_ptr: int32 (H, num_tiles),
            more than any row.
        STORES: as in `_reduce`.
    """
    D: gl.constexpr = q_desc.block_type.shape[2]
    k = gl.allocate_shared_memory(k_desc.dtype, [CONSUMERS, WG_ROWS, 1, D], k_desc.layout)
    v = gl.allocate_shared_memory(v_desc.dtype, [CONSUMERS, WG_ROWS, 1, D], v_desc.layout)
    q = gl.allocate_shared_memory(q_desc.dtype, [STAGES, WG_ROWS, 1, D], q_desc.layout)
    dout = gl.allocate_shared_memory(q_desc.dtype, [STAGES, WG_ROWS, 1, D], dout_desc.layout)
    ds_buffers = gl.allocate_shared_memory(q_desc.dtype, [2 * CONSUMERS, WG_ROWS, WG_ROWS], gl.NVMMASharedLayout(128, 16, 2))
    sum_tiles = gl.allocate_shared_memory(dq_desc.dtype, [CONSUMERS, WG_ROWS, 1, D // 2], dq_desc.layout)
    lse = gl.allocate_shared_memory(gl.float32, [STAGES, WG_ROWS], lse_desc.layout)
    delta = gl.allocate_shared_memory(gl.float32, [STAGES, WG_ROWS], delta_desc.layout)
    info = gl.allocate_shared_memory(gl.int32, [STAGES, INFO], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    messages = gl.allocate_shared_memory(gl.int32, [2, MESSAGE], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    kv_bars = Handshake(barriers(1, 1).index(0), barriers(1, CONSUMERS).index(0))
    q_full, dout_full = barriers(STAGES, 2), barriers(STAGES, 1)
    work_tiles = WorkTileQueue(messages, barriers(2, 1), barriers(2, CONSUMERS + 1))  # read by the reducer warp too
    sums = SumTiles(sum_tiles, barriers(CONSUMERS, 1))
    fence_async_shared()
    pipeline = KeyPipeline(k, v, q, dout, lse, delta, info, work_tiles, kv_bars, q_full, dout_full)
    inputs = KeyInputs(q_desc, dout_desc, lse_desc, delta_desc, k_desc, v_desc)
    tables = Tables(work_tiles_ptr, block_ranges_ptr, partial_masks_ptr)
    order = DqOrder(waits_ptr, wait_ranges_ptr, progress_ptr)
    grid = KeyGrid(num_tiles, num_items, kv_heads_per_section, heads_per_kv_head // heads_per_item, kv_heads_per_group)
    gl.warp_specialize([
        (_consume, (pipeline, ds_buffers, sums, partial_masks_ptr, heads_per_item, scale_log2, 0)),
        (_consume, (pipeline, ds_buffers, sums, partial_masks_ptr, heads_per_item, scale_log2, 1)),
        (produce_query_blocks, (inputs, pipeline, tables, grid, counter_ptr, heads_per_kv_head, stats_of_head, 1, STAGES, IN_ORDER)),
        (_reduce, (Sums(dq_desc, dk_desc, dv_desc), sums, work_tiles, block_ranges_ptr, order, grid, heads_per_item, IN_ORDER, STORES)),
    ], [4, 1, 1], [240, 24, 24])
