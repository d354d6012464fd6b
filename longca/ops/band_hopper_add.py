"""Band attention on Hopper: parts of dQ are added to memory by the tensor memory accelerator.

Gluon's compiler has such additions, its library no name for them.
"""

from triton._C.libtriton import ir
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from longca.ops.band_hopper_pieces import ROWS, hear_runs, run_of


@builtin
def async_add(tensor_desc, coord, src, _semantic=None):
    """Begins to add a tile of shared memory to a tensor, each element at once but in no order. `tma.store_wait` waits until it is read."""
    coord = _semantic._convert_to_ir_values(coord, require_i64=False)
    _semantic.builder.create_async_tma_reduce(ir.DESCRIPTOR_REDUCE_KIND.ADD, tensor_desc.handle, coord, src.handle)


@gluon.jit
def put(dq, tile):
    """A part of dQ (rows, columns) to a tile of shared memory, ready to be added.

    A thread of a warp-group matmul has 2 of each 8 neighbouring columns. Those of 32 columns lie together in the tile and in the sums
    (`band_hopper` takes them apart again), so that a thread writes 16 bytes at a time and 8 threads, of two rows, meet in no bank.
    """
    ROWS: gl.constexpr = dq.shape[0]
    COLUMNS: gl.constexpr = dq.shape[1]
    tile.reshape([ROWS, COLUMNS]).store(dq.reshape([ROWS, COLUMNS // 32, 4, 4, 2]).permute((0, 1, 3, 2, 4)).reshape([ROWS, COLUMNS]))
    fence_async_shared()


@gluon.jit
def add_tiles(dq_desc, dq_smem, dq_bars, told, told_bars, runs_ptr, packs_per_kv_head, PACK: gl.constexpr, TEAMS: gl.constexpr):
    """The adding warp: goes over the same steps as the loading one, and adds what the teams put there."""
    full, empty = dq_bars
    WIDTH: gl.constexpr = dq_desc.block_type.shape[2]
    count, turn = 0, 0
    first, middle, last, kv_head = hear_runs(0, told, told_bars[0], told_bars[1])
    while kv_head >= 0:
        for pack in range(kv_head * packs_per_kv_head, (kv_head + 1) * packs_per_kv_head):
            for number in range(gl.maximum(last - first, 1)):
                column, num_steps, _ = run_of(number, first, middle, last, runs_ptr)
                for _ in range(gl.where(first == last, 1, num_steps)):
                    for team in gl.static_range(TEAMS):
                        mbarrier.wait(full.index(team), count & 1)
                        async_add(dq_desc, [column, pack * PACK, team * WIDTH], dq_smem.index(team))
                        tma.store_wait(0)
                        mbarrier.arrive(empty.index(team), count=1)
                    column += ROWS // PACK
                    count += 1
        turn += 1
        first, middle, last, kv_head = hear_runs(turn, told, told_bars[0], told_bars[1])
