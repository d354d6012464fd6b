"""Band attention on Hopper: parts of gradients are added to memory by the tensor memory accelerator.

Gluon's compiler has such additions, its library no name for them.
"""

from triton._C.libtriton import ir
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from longca.ops.band.sm90.tile_scheduler import ROWS, hear_runs, run_below, run_of

# A bulk operation is complete to the thread that began it; it is another kind of access than those that tell of it.
PUBLISH = gl.constexpr("""cp.async.bulk.wait_group 0; fence.proxy.async.global; bar.warp.sync 0xffffffff;
    st.release.gpu.global.s32 [$1], $2; mov.b32 $0, 0;""")
AWAIT = gl.constexpr("""{ .reg .pred more; again: ld.acquire.gpu.global.s32 $0, [$1]; setp.gt.s32 more, $0, $2; @more bra again;
    fence.proxy.async.global; }""")

DONE, ENDED = gl.constexpr(-(1 << 30)), gl.constexpr(-(1 << 30) - 1)


@builtin
def async_add(tensor_desc, coord, src, _semantic=None):
    """Begins to add a tile of shared memory to a tensor, each element at once but in no order. `tma.store_wait` waits until it is read."""
    coord = _semantic._convert_to_ir_values(coord, require_i64=False)
    _semantic.builder.create_async_tma_reduce(ir.DESCRIPTOR_REDUCE_KIND.ADD, tensor_desc.handle, coord, src.handle)


@gluon.jit
def put(part, tile):
    """A part of a gradient (rows, columns) to a tile of shared memory, ready to be added.

    A thread of a warp-group matmul has 2 of each 8 neighbouring columns. Those of 32 columns lie together in the tile and in the sums
    (`sm90.launch` takes them apart again), so that a thread writes 16 bytes at a time and 8 threads, of two rows, meet in no bank.
    """
    ROWS: gl.constexpr = part.shape[0]
    COLUMNS: gl.constexpr = part.shape[1]
    tile.reshape([ROWS, COLUMNS]).store(part.reshape([ROWS, COLUMNS // 32, 4, 4, 2]).permute((0, 1, 3, 2, 4)).reshape([ROWS, COLUMNS]))
    fence_async_shared()


@gluon.jit
def _publish(progress, row):
    """All that this warp has begun to add is in memory, and others may know how far it has come."""
    gl.inline_asm_elementwise(PUBLISH, "=r,l,r", [progress.to(gl.int64), row], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def _await(progress, row):
    """Waits until who tells it has come as far."""
    gl.inline_asm_elementwise(AWAIT, "=r,l,r", [progress.to(gl.int64), row], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def _await_turn(place, behind, row, waits_ptr, progress_ptr):
    """Waits until the pieces that come before this one are done with the rows from `row` on: those above have been waited for."""
    more = place < behind
    while more:
        bottom, piece = gl.load(waits_ptr + place * 2), gl.load(waits_ptr + place * 2 + 1)
        if piece >= 0:
            _await(progress_ptr + piece, gl.maximum(row, bottom))
        more = (bottom > row) & (place + 1 < behind)
        place += more.to(gl.int32)
    return place


@gluon.jit
def _add_tile(desc, rows, head, half: gl.constexpr, tile, bars, team: gl.constexpr, count):
    """What a team has put into its tile, its `count`-th, to a half of the columns."""
    mbarrier.wait(bars[0].index(team), count & 1)
    async_add(desc, [rows, head, half * tile.shape[2]], tile)
    tma.store_wait(0)
    mbarrier.arrive(bars[1].index(team), count=1)


@gluon.jit
def add_tiles(descs, tiles, bars, told, told_bars, tables, sizes, TEAMS: gl.constexpr, IN_ORDER: gl.constexpr):
    """The adding warp: goes over the same steps as the loading one, and adds what the teams put there: halves of each step's dQ, then
    each team's rows of dV and of dK, a half of the columns at a time.

    Args:
        IN_ORDER: pieces add to a row of dQ one after the other, in the order of `Lines.pieces`, so that sums are the same in every run;
            else in any. A piece goes from the last row to the first. It tells in `progress` how far it has come: the first row that it is
            done with, DONE after all of dQ, ENDED at its end. `Lines.waits` says whom it has to wait for. To dV and dK, heads add in their
            order. Those who are waited for began earlier, and the first of all waits for nobody.
    """
    dq_desc, dk_desc, dv_desc = descs
    runs_ptr, waits_ptr, waits_of_ptr, progress_ptr = tables
    num_pieces, heads_per_kv_head, kv_heads_per_group = sizes[0], sizes[3], sizes[4]
    count, turn = 0, 0
    row0, first, middle, last, head, piece = hear_runs(0, told, told_bars[0], told_bars[1])
    while head >= 0:
        kv_head = head // heads_per_kv_head
        entry = waits_of_ptr + (kv_head // kv_heads_per_group * num_pieces + piece) * 2
        others_ptr = progress_ptr + head * num_pieces
        wait, behind = 0, 0
        full_run, partial = middle - 1, last - 1
        if IN_ORDER:
            wait, behind = gl.load(entry), gl.load(entry + 1)
        for number in range(gl.maximum(last - first, 1)):
            if IN_ORDER:
                column, num_steps, _, full_run, partial = run_below(full_run, partial, first, middle, runs_ptr, ROWS)
            else:
                column, num_steps, _ = run_of(number, first, middle, last, runs_ptr)
            for _ in range(gl.where(first == last, 1, num_steps)):
                if IN_ORDER:
                    _publish(others_ptr + piece, column + ROWS)
                    wait = _await_turn(wait, behind, column, waits_ptr, others_ptr)
                for team in gl.static_range(TEAMS):
                    _add_tile(dq_desc, column, head, team, tiles.index(team), bars, team, count)
                column += -ROWS if IN_ORDER else ROWS
                count += 1
        if IN_ORDER:
            _publish(others_ptr + piece, DONE)
            if head % heads_per_kv_head > 0:
                _await(others_ptr - num_pieces + piece, ENDED)
        for half in gl.static_range(2):
            for team in gl.static_range(TEAMS):
                _add_tile(dv_desc, row0 + team * ROWS, kv_head, half, tiles.index(team), bars, team, count + half)
        for half in gl.static_range(2):
            for team in gl.static_range(TEAMS):
                _add_tile(dk_desc, row0 + team * ROWS, kv_head, half, tiles.index(team), bars, team, count + half)
        if IN_ORDER:
            _publish(others_ptr + piece, ENDED)
        turn += 1
        row0, first, middle, last, head, piece = hear_runs(turn, told, told_bars[0], told_bars[1])
