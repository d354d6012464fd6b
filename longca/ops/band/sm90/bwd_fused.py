"""The fused backward kernel of band attention on Hopper: dQ, dK and dV in one pass, in Gluon, over row tiles
of keys.

It works like `sm90.bwd_dkdv`, but an item is a work tile for one query head or for a few in sequence. So all
programs work on the same few heads, whose Q, dO and dQ stay in the level-2 cache. A separate warp
(`bwd_reducer`) adds all gradients to float32 sums in global memory.

A round begins with a block's dP and ends with the next block's P, which overlaps with dQ. So no matmul spans
two rounds; otherwise the assembler would serialize all of them. The last round of a work tile recomputes its
own scores, which are discarded.

Each consumer group computes a part of a block's dQ, 64 rows and 64 columns. Blocks of head dim 128 have 64
rows, and a part is half of the columns; those of head dim 64 have 128 rows, and a part is half of the rows.

dS reaches the other consumer group through shared memory: each group writes its keys' dS of block n to buffer
n % 2, arrives at a named barrier, and waits for the other group. The other group's block n implies that its
dQ of block n − 1 is done, so the buffer may be reused for block n + 1.

Matmuls read shared memory nearly all the time, so other loads from it are slow. LSE and delta are therefore
loaded before the matmuls after which they are needed.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from longca.ops.band.sm90.bwd_dkdv import KeyInputs, KeyPipeline, bounds_of_keys, produce_query_blocks
from longca.ops.band.sm90.bwd_reducer import DqOrder, Sums, SumTiles, reduce_gradients
from longca.ops.band.sm90.compat import block_barrier, reinterpret
from longca.ops.band.sm90.named_barriers import (
    BLOCK_EMPTY,
    DS_FULL,
    PART_FULL,
    arrive_at,
    stage_threads,
    wait_at,
)
from longca.ops.band.sm90.pipeline import (
    FULL,
    INFO,
    Handshake,
    barriers,
    hidden_zero,
    read_mask,
    seen_columns,
    where_seen,
)
from longca.ops.band.sm90.tile_scheduler import CONSUMERS, MESSAGE, WG_ROWS, KeyGrid, Tables, WorkTileQueue


@gluon.jit
def _start_product(rows, columns):
    """Starts rows · columnsᵀ: (64, D) and (ROWS, D)."""
    ROWS: gl.constexpr = columns.shape[0]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    return warpgroup_mma(rows, columns.permute((1, 0)), gl.zeros([WG_ROWS, ROWS], gl.float32, layout),
                         use_acc=False, is_async=True)


@gluon.jit
def _start_product_less(rows, columns, less):
    """Starts rows · columnsᵀ − less, a number for each of the columns. The sums begin at −less, so that no
    other registers hold these numbers meanwhile."""
    ROWS: gl.constexpr = columns.shape[0]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    start = gl.zeros([WG_ROWS, ROWS], gl.float32, layout) - less[None, :]
    return warpgroup_mma(rows, columns.permute((1, 0)), start, is_async=True)


@gluon.jit
def _store_ds(ds, buffers, count, wg: gl.constexpr):
    """Writes a consumer group's dS of block `count`, its 64 keys × ROWS, for all groups: 64 rows a buffer."""
    PARTS: gl.constexpr = ds.shape[1] // WG_ROWS
    place = count % 2 * CONSUMERS + wg
    if PARTS == 1:
        buffers.index(place).store(ds)
    else:
        layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WG_ROWS, 16])
        left, right = ds.reshape([WG_ROWS, 2, WG_ROWS]).permute((0, 2, 1)).split()
        buffers.index(place * 2).store(gl.convert_layout(left, layout))
        buffers.index(place * 2 + 1).store(gl.convert_layout(right, layout))


@gluon.jit
def _start_dq(ds, k_parts, zero, count, wg: gl.constexpr):
    """Starts the group's part of block `count`'s dQ: two matmuls, over the keys of each consumer group."""
    ROW_PARTS: gl.constexpr = ds.shape[0] // (2 * CONSUMERS)
    COLUMN_PARTS: gl.constexpr = k_parts.shape[0] // CONSUMERS
    WIDTH: gl.constexpr = k_parts.shape[2]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    place = (count & 1) * (CONSUMERS * ROW_PARTS) + wg % ROW_PARTS
    part: gl.constexpr = wg % COLUMN_PARTS
    dq = gl.zeros([WG_ROWS, WIDTH], gl.float32, layout)
    dq = warpgroup_mma(
        ds.index(place).permute((1, 0)), k_parts.index(part + zero), dq, use_acc=False, is_async=True
    )
    return warpgroup_mma(ds.index(place + ROW_PARTS).permute((1, 0)),
                         k_parts.index(COLUMN_PARTS + part + zero), dq, is_async=True)


@gluon.jit
def _masked_p(exponents, bounds, mask, num_rows, rows):
    """P = exp2(S · scale · log2 e − LSE · log2 e), keys × queries, 0 where a key is hidden or past the work
    tile's end."""
    p = gl.exp2(exponents)
    if (mask != FULL) | (num_rows < CONSUMERS * WG_ROWS):
        p = where_seen(p, seen_columns(gl.where(rows < num_rows, bounds, 0), p), 0.0)
    return p


@gluon.jit
def _await_ds(count, number, wg: gl.constexpr, BEGIN: gl.constexpr):
    """Waits for the other group's dS of block `count`, the `number`-th of a work tile.

    The first group always waits before dQ. The second group does so, too, except in a work tile's first
    round, where it waits at the beginning. So it lags by a part of a round, and exponentials and stores of
    one group overlap with matmuls of the other.
    """
    if ((number == 0) & (wg == 1)) == BEGIN:
        wait_at(DS_FULL + count % 2 * 2 + (1 - wg), 256)


@gluon.jit
def _hand_over(part, sums, count, wg: gl.constexpr):
    """Passes a part of a gradient (rows, columns), the group's `count`-th, to the reducer warp.

    A thread of a warp-group matmul has 2 of each 8 neighbouring columns. Its values of 32 columns are
    contiguous in the buffer and in the sums (`_finish_rows` in `sm90.launch` restores the order), so that a
    thread writes 16 bytes at a time and 8 threads, of two rows, have no bank conflicts.
    """
    ROWS: gl.constexpr = part.shape[0]
    COLUMNS: gl.constexpr = part.shape[1]
    mbarrier.wait(sums.empty.index(wg), (count & 1) ^ 1)
    tile = sums.tiles.index(wg).reshape([ROWS, COLUMNS])
    tile.store(part.reshape([ROWS, COLUMNS // 32, 4, 4, 2]).permute((0, 1, 3, 2, 4)).reshape([ROWS, COLUMNS]))
    fence_async_shared()
    arrive_at(PART_FULL + wg, stage_threads(1))


@gluon.jit
def _hand_over_rows(x, sums, count, wg: gl.constexpr):
    """Passes whole rows of a gradient, 64 columns at a time."""
    if x.shape[1] == WG_ROWS:
        _hand_over(x, sums, count, wg)
    else:
        left, right = x.reshape([x.shape[0], 2, x.shape[1] // 2]).permute((0, 2, 1)).split()
        _hand_over(left, sums, count, wg)
        _hand_over(right, sums, count + 1, wg)


@gluon.jit
def _consume(pipeline, ds_buffers, sums, masks_ptr, heads_per_item, scale_log2, wg: gl.constexpr):
    """A consumer group: its 64 keys of every work tile.

    Args:
        ds_buffers: (2 · CONSUMERS · ROWS / 64, 64, 64), two times ROWS / 64 for each group.
    """
    STAGES: gl.constexpr = pipeline.q.shape[0]
    ROWS: gl.constexpr = pipeline.q.shape[1]
    D: gl.constexpr = pipeline.q.shape[3]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    sum_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, sum_layout, 2)
    across: gl.constexpr = gl.SliceLayout(0, layout)
    rows = wg * WG_ROWS + gl.arange(0, WG_ROWS, layout=gl.SliceLayout(1, layout))
    k_parts = reinterpret(
        pipeline.k, pipeline.k.dtype, [CONSUMERS * D // WG_ROWS, WG_ROWS, WG_ROWS],
        gl.NVMMASharedLayout(128, 16, 2),
    )
    inverse = 1.0 / scale_log2
    count, tile_count = 0, 0
    tile = pipeline.work_tiles.receive(0)
    while tile.pack >= 0:
        dk, dv = (
            gl.zeros([WG_ROWS, D], gl.float32, sum_layout),
            gl.zeros([WG_ROWS, D], gl.float32, sum_layout),
        )
        num_rows = tile.row_end - tile.row_start
        mbarrier.wait(pipeline.kv_bars.full, tile_count & 1)
        stage = count % STAGES
        mbarrier.wait(pipeline.q_full.index(stage), (count // STAGES) & 1)
        own_k = pipeline.k.index(wg).reshape([WG_ROWS, D])
        first_q = pipeline.q.index(stage).reshape([ROWS, D])
        if ROWS == WG_ROWS:
            s = _start_product(own_k, first_q)
        else:
            s = _start_product_less(own_k, first_q, pipeline.lse.index(stage).load(across) * inverse)
        mask = read_mask(pipeline.info, stage)
        bounds = bounds_of_keys(mask, masks_ptr, rows, ROWS)
        s = warpgroup_mma_wait(0, deps=[s])
        if ROWS == WG_ROWS:
            exponents = s * scale_log2 - pipeline.lse.index(stage).load(across)[None, :]
        else:
            exponents = s * scale_log2
        p = _masked_p(exponents, bounds, mask, num_rows, rows)
        num_blocks = gl.maximum(tile.partial_end - tile.partial_start + tile.num_full, 1) * heads_per_item
        for number in range(num_blocks):
            stage, phase = count % STAGES, (count // STAGES) & 1
            zero = hidden_zero(count)
            k, v = (
                pipeline.k.index(wg).reshape([WG_ROWS, D]),
                pipeline.v.index(wg + zero).reshape([WG_ROWS, D]),
            )
            q, dout = (
                pipeline.q.index(stage).reshape([ROWS, D]),
                pipeline.dout.index(stage).reshape([ROWS, D]),
            )
            _await_ds(count, number, wg, True)
            mbarrier.wait(pipeline.dout_full.index(stage), phase)
            delta = pipeline.delta.index(stage).load(across)
            if ROWS == WG_ROWS:
                dp = _start_product(v, dout)
                p_operand = gl.convert_layout(p.to(q.dtype), operand)
                dv = warpgroup_mma(p_operand, dout, dv, is_async=True)
                dp = warpgroup_mma_wait(1, deps=[dp])
                ds = (p * (dp - delta[None, :])).to(q.dtype)
            else:  # neither P as an operand nor delta would fit into registers beside P and dP
                dp = _start_product_less(v, dout, delta)
                dp = warpgroup_mma_wait(0, deps=[dp])
                ds = (p * dp).to(q.dtype)
                p_operand = gl.convert_layout(p.to(q.dtype), operand)
                dv = warpgroup_mma(p_operand, dout, dv, is_async=True)
            _store_ds(ds, ds_buffers, count, wg)
            fence_async_shared()
            arrive_at(DS_FULL + count % 2 * 2 + wg, 256)
            ds_operand = gl.convert_layout(ds, operand)
            dk = warpgroup_mma(ds_operand, q, dk, is_async=True)
            # after the last block its own scores again, which are discarded
            following = gl.where(number + 1 < num_blocks, count + 1, count)
            stage = following % STAGES
            mbarrier.wait(pipeline.q_full.index(stage), (following // STAGES) & 1)
            lse = pipeline.lse.index(stage).load(across)
            dv, p_operand = warpgroup_mma_wait(1, deps=[dv, p_operand])
            if ROWS == WG_ROWS:
                s = _start_product(k, pipeline.q.index(stage).reshape([ROWS, D]))
            else:
                s = _start_product_less(k, pipeline.q.index(stage).reshape([ROWS, D]), lse * inverse)
            mask = read_mask(pipeline.info, stage)
            bounds = bounds_of_keys(mask, masks_ptr, rows, ROWS)
            _await_ds(count, number, wg, False)
            block_barrier()
            dq = _start_dq(ds_buffers, k_parts, zero, count, wg)
            s, dk, ds_operand = warpgroup_mma_wait(2, deps=[s, dk, ds_operand])
            exponents = s * scale_log2 - lse[None, :] if ROWS == WG_ROWS else s * scale_log2
            p = _masked_p(exponents, bounds, mask, num_rows, rows)
            arrive_at(BLOCK_EMPTY + count % STAGES, stage_threads(CONSUMERS))
            dq = warpgroup_mma_wait(0, deps=[dq])
            _hand_over(dq, sums, count, wg)
            count += 1
        mbarrier.arrive(pipeline.kv_bars.empty, count=1)
        _hand_over_rows(dv, sums, count, wg)
        _hand_over_rows(dk, sums, count + D // WG_ROWS, wg)
        tile_count += 1
        tile = pipeline.work_tiles.receive(tile_count)


@gluon.jit(do_not_specialize=["num_tiles", "num_items", "kv_heads_per_section", "rounds_per_section",
                              "kv_heads_per_group",
                              "heads_per_kv_head", "stats_of_head", "heads_per_item"])
def fused_kernel(q_desc, dout_desc, lse_desc, delta_desc, k_desc, v_desc, dq_desc, dk_desc, dv_desc,
                 counter_ptr, work_tiles_ptr,
                 block_ranges_ptr, partial_masks_ptr, waits_ptr, wait_ranges_ptr, progress_ptr, num_tiles,
                 num_items, kv_heads_per_section,
                 rounds_per_section, kv_heads_per_group, heads_per_kv_head, stats_of_head, heads_per_item,
                 scale_log2,
                 IN_ORDER: gl.constexpr, STORES: gl.constexpr, STAGES: gl.constexpr):
    """
    Args: as of `sm90.bwd_dkdv.dkdv_kernel` with one head in a block, and
        dq_desc, dk_desc, dv_desc: float32 (T, H, D) and (S, G, D), zero unless STORES, in boxes of (64, 1,
            64): the sums, without the scale and with columns in the order of `_hand_over`.
        heads_per_item: a divisor of heads_per_kv_head.
        rounds_per_section: head rounds of a KV head, of `heads_per_item` each, that start together.
        IN_ORDER, STORES: as in `reduce_gradients`, which needs with IN_ORDER waits_ptr, wait_ranges_ptr (of
            `TileSchedule`) and
            progress_ptr: int32 (H, num_tiles), zero.
    """
    D: gl.constexpr = q_desc.block_type.shape[2]
    k = gl.allocate_shared_memory(k_desc.dtype, [CONSUMERS, WG_ROWS, 1, D], k_desc.layout)
    v = gl.allocate_shared_memory(v_desc.dtype, [CONSUMERS, WG_ROWS, 1, D], v_desc.layout)
    ROWS: gl.constexpr = q_desc.block_type.shape[0]
    q = gl.allocate_shared_memory(q_desc.dtype, [STAGES, ROWS, 1, D], q_desc.layout)
    dout = gl.allocate_shared_memory(q_desc.dtype, [STAGES, ROWS, 1, D], dout_desc.layout)
    ds_buffers = gl.allocate_shared_memory(
        q_desc.dtype, [2 * CONSUMERS * ROWS // WG_ROWS, WG_ROWS, WG_ROWS], gl.NVMMASharedLayout(128, 16, 2)
    )
    sum_tiles = gl.allocate_shared_memory(dq_desc.dtype, [CONSUMERS, WG_ROWS, 1, WG_ROWS], dq_desc.layout)
    lse = gl.allocate_shared_memory(gl.float32, [STAGES, ROWS], lse_desc.layout)
    delta = gl.allocate_shared_memory(gl.float32, [STAGES, ROWS], delta_desc.layout)
    info = gl.allocate_shared_memory(gl.int32, [STAGES, INFO], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    messages = gl.allocate_shared_memory(gl.int32, [2, MESSAGE], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    kv_bars = Handshake(barriers(1, 1).index(0), barriers(1, CONSUMERS).index(0))
    q_full, dout_full = barriers(STAGES, 2), barriers(STAGES, 1)
    # read by the reducer warp too
    work_tiles = WorkTileQueue(messages, barriers(2, 1), barriers(2, CONSUMERS + 1))
    sums = SumTiles(sum_tiles, barriers(CONSUMERS, 1))
    fence_async_shared()
    pipeline = KeyPipeline(k, v, q, dout, lse, delta, info, work_tiles, kv_bars, q_full, dout_full)
    inputs = KeyInputs(q_desc, dout_desc, lse_desc, delta_desc, k_desc, v_desc)
    tables = Tables(work_tiles_ptr, block_ranges_ptr, partial_masks_ptr)
    order = DqOrder(waits_ptr, wait_ranges_ptr, progress_ptr)
    grid = KeyGrid(num_tiles, num_items, kv_heads_per_section, rounds_per_section,
                   heads_per_kv_head // heads_per_item, kv_heads_per_group)
    gradients = Sums(dq_desc, dk_desc, dv_desc)
    gl.warp_specialize([
        (_consume, (pipeline, ds_buffers, sums, partial_masks_ptr, heads_per_item, scale_log2, 0)),
        (_consume, (pipeline, ds_buffers, sums, partial_masks_ptr, heads_per_item, scale_log2, 1)),
        (produce_query_blocks, (inputs, pipeline, tables, grid, counter_ptr, heads_per_kv_head, stats_of_head, 1, STAGES, IN_ORDER)),  # noqa: E501
        (reduce_gradients, (gradients, sums, work_tiles, block_ranges_ptr, order, grid, heads_per_item, ROWS, IN_ORDER, STORES)),  # noqa: E501
    ], [4, 1, 1], [240, 24, 24])
