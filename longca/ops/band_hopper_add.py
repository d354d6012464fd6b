"""Band attention on Hopper: additions to memory by the tensor memory accelerator. Gluon's compiler has them, its library no name for them."""

from triton._C.libtriton import ir
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma


@builtin
def async_add(tensor_desc, coord, src, _semantic=None):
    """Begins to add a tile of shared memory to a tensor, each element at once but in no order. `tma.store_wait` waits until it is read."""
    coord = _semantic._convert_to_ir_values(coord, require_i64=False)
    _semantic.builder.create_async_tma_reduce(ir.DESCRIPTOR_REDUCE_KIND.ADD, tensor_desc.handle, coord, src.handle)


@gluon.jit
def add_to_dq(dq, tile, dq_desc, query, head, column: gl.constexpr):
    """Adds (rows, columns) of dQ to the sums, by way of a team's tile, whose last use has been read by then.

    A thread of a warp-group matmul has 2 of each 8 neighbouring columns. Those of 32 columns lie together in the tile and in the sums
    (`in_order` of `band_hopper`), so that a thread writes 16 bytes at a time and 8 threads, of two rows, meet in no bank.
    """
    ROWS: gl.constexpr = dq.shape[0]
    COLUMNS: gl.constexpr = dq.shape[1]
    tma.store_wait(0)
    tile.reshape([ROWS, COLUMNS]).store(dq.reshape([ROWS, COLUMNS // 32, 4, 4, 2]).permute((0, 1, 3, 2, 4)).reshape([ROWS, COLUMNS]))
    fence_async_shared()
    async_add(dq_desc, [query, head, column], tile)
