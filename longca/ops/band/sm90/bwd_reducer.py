"""The reducer warp of the fused backward kernel: it adds the consumer groups' parts of dQ, dK and dV to sums
in global memory.

It uses the tensor memory accelerator (TMA), whose additions Gluon's compiler supports without a name in its
library. With a fixed order, work tiles wait for each other, so that sums are the same in every run.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.language.core import _aggregate as aggregate

from longca.ops.band.sm90.compat import add_tile, store_tile
from longca.ops.band.sm90.named_barriers import PART_FULL, stage_threads, wait_at
from longca.ops.band.sm90.tile_scheduler import (
    CONSUMERS,
    FROM_LAST,
    WG_ROWS,
    first_entries,
    next_range,
    range_of,
)

# The completion of a bulk operation is visible only to the thread that started it, and a bulk operation is
# not ordered with a plain store. With a relaxed store, other orders of the sums were observed. The waiter
# performs only reductions (no loads), so a relaxed load is sufficient; acquire would add no ordering.
PUBLISH = gl.constexpr("""cp.async.bulk.wait_group 0; fence.proxy.async.global; bar.warp.sync 0xffffffff;
    st.release.gpu.global.s32 [$1], $2; mov.b32 $0, 0;""")
LOOK = gl.constexpr("ld.relaxed.gpu.global.s32 $0, [$1];")
AWAIT = gl.constexpr("""{ .reg .pred more; again: ld.relaxed.gpu.global.s32 $0, [$1]; setp.gt.s32 more, $0, $2; @more bra again;
    fence.proxy.async.global; }""")  # noqa: E501
# Progress is the first row that an item has finished, minus NOT_BEGUN, so that zeroed memory means no
# progress.
NOT_BEGUN = gl.constexpr(1 << 29)  # more than any row
# instead of a row: all of dQ is done, and dK too
DQ_DONE, ALL_DONE = gl.constexpr(-(1 << 30)), gl.constexpr(-(1 << 30) - 1)


@aggregate
class SumTiles:
    """Buffers in which consumer groups pass parts of gradients to the reducer warp, one for each group."""

    tiles: gl.shared_memory_descriptor  # float32 (CONSUMERS, 64, 1, 64)
    empty: gl.shared_memory_descriptor  # a barrier for each; full buffers are signalled at a named barrier

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
    """Pointers to the order of additions to dQ: `TileSchedule.waits` and `wait_ranges`, and each item's
    progress."""

    waits: gl.tensor
    wait_ranges: gl.tensor
    progress: gl.tensor

    @gluon.constexpr_function
    def __init__(self, waits, wait_ranges, progress):
        self.waits = waits
        self.wait_ranges = wait_ranges
        self.progress = progress


@gluon.jit
def _publish(progress_ptr, row):
    """Waits until all pending additions of this warp are in memory, then publishes its progress."""
    gl.inline_asm_elementwise(
        PUBLISH, "=r,l,r", [progress_ptr.to(gl.int64), row - NOT_BEGUN], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def _await(progress_ptr, row):
    """Waits until another item's progress has reached `row`."""
    gl.inline_asm_elementwise(
        AWAIT, "=r,l,r", [progress_ptr.to(gl.int64), row - NOT_BEGUN], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def _look(progress_ptr):
    """Another item's progress. The warp continues until the value is needed."""
    return gl.inline_asm_elementwise(
        LOOK, "=r,l", [progress_ptr.to(gl.int64)], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def _wait_entry(wait, end, waits_ptr):
    """(first row, item or −1) of an entry of `waits`."""
    return gl.load(waits_ptr + wait * 2, mask=wait < end, other=DQ_DONE), gl.load(
        waits_ptr + wait * 2 + 1, mask=wait < end, other=-1
    )


@gluon.jit
def _await_rows(wait, end, bottom, other, seen, row, waits_ptr, progress_ptr):
    """Waits until the preceding work tiles have finished the rows from `row` on; earlier calls waited for the
    rows above.

    Args:
        bottom, other: the entry `wait` of `waits`.
        seen: an earlier value of that item's progress.

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
def _add_parts(desc, rows, step: gl.constexpr, head, part, part_step: gl.constexpr, sums, is_first):
    """Adds each consumer group's next part: group n's to the rows from `rows + n · step` on, and to the part
    `part + n · part_step` of the columns. First addends are stored instead."""
    for wg in gl.static_range(CONSUMERS):
        wait_at(PART_FULL + wg, stage_threads(1))
        tile = sums.tiles.index(wg)
        row, column = rows + wg * step, (part + wg * part_step) * tile.shape[2]
        if is_first:
            store_tile(desc, [row, head, column], tile)
        else:
            add_tile(desc, [row, head, column], tile)
    for wg in gl.static_range(CONSUMERS):
        tma.store_wait(CONSUMERS - 1 - wg)
        mbarrier.arrive(sums.empty.index(wg), count=1)


@gluon.jit
def reduce_gradients(desc, sums, work_tiles, block_ranges_ptr, order, grid, heads_per_item,
                     BLOCK: gl.constexpr, IN_ORDER: gl.constexpr, STORES: gl.constexpr):
    """The reducer warp: iterates over the same blocks as the producer, and adds the parts from the consumer
    groups: halves of each block's dQ, head by head, then each group's rows of dV and of dK, 64 columns at a
    time.

    Args:
        BLOCK: rows of a block. Halves of its dQ are of the columns, or where it has 128 rows, of the rows.
        IN_ORDER: work tiles add to a row of dQ in the order of `TileSchedule.work_tiles`, so that sums are
            the same in every run; otherwise in any order. A work tile goes from the last row to the first, or
            from the first, and then rows count backwards (row r is −r). It publishes its progress with each
            head in `progress`: the first finished row, DQ_DONE after all of dQ, ALL_DONE at its end.
            `TileSchedule.waits` lists the work tiles for which it must wait. Items add to dV and dK in the
            order of their heads. Every item waits only for items that began earlier, and the first one waits
            for none, so there is no deadlock.
        STORES: memory holds no zeros. An item that waits for no other stores, which needs
            `TileSchedule.stores_first` and an order.
    """
    COLUMN_PARTS: gl.constexpr = 2 * WG_ROWS // BLOCK
    ROW_STEP: gl.constexpr = WG_ROWS if COLUMN_PARTS == 1 else 0
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
                    column, num_blocks, _, full, partial = next_range(full, partial, tile.full_start,
                                                                      tile.partial_start, tile.partial_end,
                                                                      block_ranges_ptr, BLOCK, IN_ORDER)
                else:
                    column, num_blocks, _ = range_of(
                        number, tile.full_start, tile.partial_start, tile.partial_end, block_ranges_ptr
                    )
                for _ in range(gl.where(tile.full_start == tile.partial_end, 1, num_blocks)):
                    if IN_ORDER:
                        place = column if IN_ORDER == FROM_LAST else -BLOCK - column
                        seen = _look(head_ptr + gl.maximum(other, 0))
                        _publish(head_ptr + tile.index, place + BLOCK)
                        wait, bottom, other = _await_rows(
                            wait, wait_end, bottom, other, seen, place, order.waits, head_ptr
                        )
                    # an item without blocks adds zero rows
                    is_first = (other < 0) & (tile.full_start < tile.partial_end) if STORES else False
                    _add_parts(desc.dq, column, ROW_STEP, head, 0, COLUMN_PARTS - 1, sums, is_first)
                    column += -BLOCK if IN_ORDER == FROM_LAST else BLOCK
            if IN_ORDER:
                _publish(head_ptr + tile.index, DQ_DONE)
        if IN_ORDER:  # noqa: SIM102 - decided when compiling
            if item % grid.head_rounds > 0:  # dK and dV of the heads before
                _await(progress_ptr - grid.num_tiles + tile.index, ALL_DONE)
        is_first = item % grid.head_rounds == 0 if STORES else False
        for part in gl.static_range(COLUMN_PARTS):
            _add_parts(desc.dv, tile.row_start, WG_ROWS, kv_head, part, 0, sums, is_first)
        for part in gl.static_range(COLUMN_PARTS):
            _add_parts(desc.dk, tile.row_start, WG_ROWS, kv_head, part, 0, sums, is_first)
        if IN_ORDER:
            _publish(progress_ptr + (heads_per_item - 1) * grid.num_tiles + tile.index, ALL_DONE)
        tile_count += 1
        tile = work_tiles.receive_blocks(tile_count)
