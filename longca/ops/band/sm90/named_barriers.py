"""Named barriers, which synchronise warps of several roles; each warp arrives independently.

With Gluon's `mbarrier.arrive` one thread arrives for its warp group, so the group first waits for its slowest
warp. At four times for each tile of K and V, that is a tenth of the forward kernel's time. At a named barrier
each warp arrives for itself. It has no parity: all that arrive do so once before those that wait go on.

A program has 16 of them. The compiler uses the first ones, for the whole program and for each role.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

# In the forward kernel: a stage of K or of V has been read.
K_EMPTY, V_EMPTY = gl.constexpr(8), gl.constexpr(11)  # three of each
# In the backward kernels: that a stage of a block of queries is read, and that a consumer group's part of a
# gradient is in its buffer.
# three, two and four of them
BLOCK_EMPTY, PART_FULL, DS_FULL = gl.constexpr(7), gl.constexpr(10), gl.constexpr(12)
ARRIVE, SYNC = (
    gl.constexpr("bar.arrive $1, $2; mov.b32 $0, 0;"),
    gl.constexpr("bar.sync $1, $2; mov.b32 $0, 0;"),
)


@gluon.constexpr_function
def stage_threads(consumers):
    """Threads that synchronise on a stage: those of the consumer groups and of the producer warp."""
    return 128 * consumers + 32


@gluon.jit
def arrive_at(barrier, THREADS: gl.constexpr):
    """Arrives for this warp without waiting. THREADS: of all warps that arrive or wait."""
    gl.inline_asm_elementwise(ARRIVE, "=r,r,r", [barrier, THREADS], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def wait_at(barrier, THREADS: gl.constexpr):
    """Arrives for this warp, and waits for all others."""
    gl.inline_asm_elementwise(SYNC, "=r,r,r", [barrier, THREADS], dtype=gl.int32, is_pure=False, pack=1)
