"""Memory of GPUs into which ranks of one machine can write to each other, and streams that wait for what a peer has told.

By way of torch's symmetric memory, peer to peer: multicast stays off. A stream waits for a number, and writes one to a peer, by stream
memory operations of the driver: neither needs a multiprocessor, which an attention kernel that takes them all would not give. A stream
whose peer is gone waits for ever, and so does who waits for it: whoever started the ranks must end them.
"""

from __future__ import annotations

import ctypes
import math
import os
import weakref
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch

    from longca.cp.comm.flow import Signal
    from longca.cp.comm.process_group import Comm

DRIVER = "libcuda.so.1"
WAIT_AT_LEAST = 0  # CU_STREAM_WAIT_VALUE_GEQ: as the sign of the difference in 32 bits, so that numbers may wrap
WRITE_AFTER_ALL = 0  # CU_STREAM_WRITE_VALUE_DEFAULT: what the stream has written before is seen by whoever sees the number
NUMBERS = 1 << 32
ROWS = {"ready": 0, "full": 1}
NUMBER_BYTES = 4

T = TypeVar("T")


class CudaMemory:
    """Of one rank.

    A heap that nobody has any more is given back by the next `release`, not at once: the driver waits for all that the GPU has to do
    then, which may wait for a peer that is gone, and a rank that fails must say so first.
    """

    def __init__(self, comm: Comm) -> None:
        self._comm = comm
        self._held: list[tuple[weakref.ref[CudaHeap], torch.Tensor, Any]] = []

    @property
    def held_bytes(self) -> int:
        return sum(tensor.nbytes for _, tensor, _ in self._held)

    def release(self) -> None:
        self._held = [held for held in self._held if held[0]() is not None]

    @cached_property
    def driver(self) -> ctypes.CDLL:
        """Raises OSError where there is none."""
        return ctypes.CDLL(DRIVER)

    def heap(self, num_bytes: int) -> CudaHeap:
        self.release()
        heap = CudaHeap(self._comm, num_bytes)
        self._held.append((weakref.ref(heap), heap.tensor, heap.handle))
        return heap

    def wire(self) -> CudaWire:
        return CudaWire(self._comm, self.heap(len(ROWS) * self._comm.world * NUMBER_BYTES), self.driver)


class CudaHeap:
    """As `landings.Heap`."""

    def __init__(self, comm: Comm, num_bytes: int) -> None:
        """Raises RuntimeError on all ranks, with the reason, if one has no such memory."""
        import torch.distributed as dist
        from torch.distributed import _symmetric_memory as symmetric

        os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"  # torch looks when ranks first meet
        group = dist.group.WORLD
        assert group is not None
        self._rank = comm.rank
        self.tensor = _on_all_ranks(comm, lambda: _allocate(num_bytes, comm.device))
        self.handle: Any = _on_all_ranks(comm, lambda: symmetric.rendezvous(self.tensor, group))

    def view(self, rank: int, first_byte: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        if rank == self._rank:  # a part of the tensor keeps all of it, as a peer's buffer does not
            behind = first_byte + math.prod(shape) * dtype.itemsize
            return self.tensor[first_byte:behind].view(dtype).view(*shape)
        return self.handle.get_buffer(rank, tuple(shape), dtype, first_byte // dtype.itemsize)

    def address(self, rank: int) -> int:
        import torch

        return self.view(rank, 0, (1,), torch.uint8).data_ptr()


class CudaWire:
    """As `symmetric_lane.Wire`: a stream of high priority."""

    def __init__(self, comm: Comm, numbers: CudaHeap, driver: ctypes.CDLL) -> None:
        """Raises RuntimeError on all ranks, with the reason, if one cannot begin."""
        self._comm, self._numbers, self._driver = comm, numbers, driver
        self._stream, self._addresses = _on_all_ranks(comm, self._begin)  # nobody tells anything before all have begun at 0

    def _begin(self) -> tuple[Any, list[int]]:
        import torch

        self.tell_oneself(0)
        torch.cuda.synchronize(self._comm.device)
        return torch.cuda.Stream(self._comm.device, priority=-1), [self._numbers.address(rank) for rank in range(self._comm.world)]

    def follow(self) -> None:
        import torch

        self._stream.wait_stream(torch.cuda.current_stream(self._comm.device))

    def tell(self, peer: int, signal: Signal, number: int) -> None:
        self._do(self._driver.cuStreamWriteValue32_v2, self._address(peer, signal, self._comm.rank), number, WRITE_AFTER_ALL)

    def wait_for(self, peer: int, signal: Signal, number: int) -> None:
        self._do(self._driver.cuStreamWaitValue32_v2, self._address(self._comm.rank, signal, peer), number, WAIT_AT_LEAST)

    def write(self, there: torch.Tensor, x: torch.Tensor) -> None:
        import torch

        with torch.cuda.stream(self._stream):
            there.copy_(x, non_blocking=True)  # contiguous, of one dtype, between two GPUs: a copy engine's work

    def mark(self) -> Any:
        return self._stream.record_event()

    def tell_oneself(self, number: int) -> None:
        """As if all peers had told this number: from the current stream."""
        import torch

        self._numbers.view(self._comm.rank, 0, (len(ROWS) * self._comm.world,), torch.int32).fill_(number)

    def _address(self, rank: int, signal: Signal, teller: int) -> int:
        return self._addresses[rank] + (ROWS[signal] * self._comm.world + teller) * NUMBER_BYTES

    def _do(self, operation: Any, address: int, number: int, flags: int) -> None:
        status = operation(ctypes.c_void_p(self._stream.cuda_stream), ctypes.c_uint64(address), ctypes.c_uint32(number % NUMBERS),
                           ctypes.c_uint(flags))
        if status:
            raise RuntimeError(f"{operation.__name__} failed: CUDA driver error {status}")


def _on_all_ranks(comm: Comm, work: Callable[[], T]) -> T:
    """What a rank's own work gives; RuntimeError on all ranks where it fails on one."""
    results, reason = [], ""
    try:
        results.append(work())
    except Exception as error:  # torch, the store and the driver say no in many ways
        reason = f"rank {comm.rank}, symmetric memory: {error}"
    for of_rank in filter(None, comm.gather(reason)):
        raise RuntimeError(of_rank)
    return results[0]


def _allocate(num_bytes: int, device: torch.device) -> torch.Tensor:
    """Straight from the driver: torch's pool for such memory would keep what is given back. So torch's allocator does not count it."""
    import torch
    from torch._C._distributed_c10d import _SymmetricMemory

    def attempt() -> torch.Tensor:
        return _SymmetricMemory.empty_strided_p2p((num_bytes,), (1,), torch.uint8, device)

    try:
        return attempt()
    except RuntimeError:  # what torch's allocator keeps for later may be what is missing
        torch.cuda.empty_cache()
        return attempt()
