"""One name for each function of Gluon that is renamed between versions of Triton.

Kernels import them from here. Each is selected once, by the names in Triton's modules: new names first, since
Triton 3.9 keeps removed ones as functions that raise. A name means the same operation under every version, so
that the kernels have one source.

    here           Triton 3.6                       3.7                            3.8, 3.9
    block_barrier  gl.thread_barrier                gl.barrier                     gl.barrier
    load_tile      tma.async_copy_global_to_shared  as before                      tma.async_load
    store_tile     tma.async_copy_shared_to_global  as before                      tma.async_store
    add_tile       no name: the builder's method    as before                      tma.async_atomic_add
    reinterpret    x._reinterpret(…)                as before                      3.9: x.reinterpret(…)
"""

# Triton gives `_semantic` to each of its builtins
# pyright: reportOptionalMemberAccess=false

from typing import Any

from triton._C.libtriton import ir
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import tma

__all__ = ["add_tile", "block_barrier", "load_tile", "reinterpret", "store_tile"]


def _first_of(owner: Any, *names: str) -> Any:
    """The first of these attributes that exists.

    Raises:
        ImportError: none exists.
    """
    for name in names:
        if hasattr(owner, name):
            return getattr(owner, name)
    raise ImportError(f"Triton's Gluon has no {' and no '.join(names)}")


@builtin
def async_add(tensor_desc, coord, src, _semantic=None):
    """`tma.async_atomic_add`, which Triton 3.7 can compile but does not name."""
    coord = _semantic._convert_to_ir_values(coord, require_i64=False)
    _semantic.builder.create_async_tma_reduce(
        ir.DESCRIPTOR_REDUCE_KIND.ADD, tensor_desc.handle, coord, src.handle
    )


# All threads of a program, or of a role, wait for each other.
block_barrier = _first_of(gl, "barrier", "thread_barrier")
# (descriptor, coordinates, barrier, buffer): starts to copy a box to shared memory; the barrier then has its
# bytes.
load_tile = _first_of(tma, "async_load", "async_copy_global_to_shared")
# (descriptor, coordinates, buffer): starts to copy a buffer to global memory, or to add it there, element by
# element and in no order. `tma.store_wait` waits until the buffer is read.
store_tile = _first_of(tma, "async_store", "async_copy_shared_to_global")
add_tile = getattr(tma, "async_atomic_add", async_add)
# (buffer, dtype, shape, layout): the same shared memory with another type and layout.
reinterpret = _first_of(gl.shared_memory_descriptor, "reinterpret", "_reinterpret")
