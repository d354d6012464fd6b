"""Hiding of scores in the Hopper kernels: which columns a row sees, as the bits of a number in each thread.

In the result of a warp-group matmul the four threads of a row share its columns: of each 8, thread t has the columns 2 t and 2 t + 1.
So the columns of a thread that its row sees are a run of bits, made with a few operations, and each score costs one test and one selection.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

RUN_OF_BITS = gl.constexpr("bmsk.clamp.b32 $0, $1, $2;")  # first bit, number of bits


@gluon.jit
def seen_columns(bounds, like, SCALE: gl.constexpr):
    """The bits of a thread's columns of `like` that its rows see, (rows, 4) int32.

    Args:
        bounds: (rows,) int32, the first column and the one after the last, in 16 bits each as in `TileSchedule.partial_masks`.
        like: a result of a warp-group matmul, (rows, columns): at most 128 columns.
        SCALE: columns of one column of `bounds`.
    """
    layout: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(3, _by_thread(like).type.layout))
    bounds = gl.convert_layout(bounds, gl.SliceLayout(1, layout))[:, None]
    quarter = gl.arange(0, 4, layout=gl.SliceLayout(0, layout))[None, :]
    first, after = _place((bounds & 0xFFFF) * SCALE, quarter), _place((bounds >> 16) * SCALE, quarter)
    return gl.inline_asm_elementwise(RUN_OF_BITS, "=r,r,r", [first, gl.maximum(after - first, 0)], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def where_seen(x, bits, other):
    """x where a bit of `seen_columns` is set, and else another number."""
    parts = _by_thread(x)
    layout: gl.constexpr = parts.type.layout
    eight = gl.arange(0, parts.shape[1], layout=gl.SliceLayout(0, gl.SliceLayout(2, gl.SliceLayout(3, layout))))[None, :, None, None]
    two = gl.arange(0, 2, layout=gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, layout))))[None, None, None, :]
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
    """How many of a thread's columns come before a column."""
    return column // 8 * 2 + gl.minimum(gl.maximum(column % 8 - 2 * quarter, 0), 2)
