"""Signals of ranks on GPUs of one machine: numbers that streams wait for, and the memory that they lie in.

A rank gives its peers up by setting its own signals, as if all had come. Meanwhile another thread may copy
from the GPU into pageable memory. That copy waits for the GPU, the GPU waits for a signal, and launches and
copies of this process, on any stream, can wait for that copy. So signals lie in memory of the host, where a
store by the CPU sets them. In memory of the GPU they can be set only while no thread waits like that.
"""

from __future__ import annotations

import ctypes
import mmap
import weakref
from collections.abc import Callable
from io import FileIO
from typing import TYPE_CHECKING, Any, Protocol

from longca.cp.comm.machine import open_on_all_ranks
from longca.cp.comm.p2p import SymmetricBuffer

if TYPE_CHECKING:
    import torch

    from longca.cp.comm.process_group import WorldGroup

KINDS = "ready", "full"
SIGNAL_BYTES = 4
RANK_BYTES = 128  # or more: ranks share no line of a cache
# CU_MEMHOSTREGISTER_PORTABLE, CU_MEMHOSTREGISTER_DEVICEMAP
FOR_ALL_GPUS = 1
MAPPED = 2


class Signals(Protocol):
    """Numbers of 4 bytes, (2, world) on each rank: the last "ready" and "full" of each peer to this rank."""

    def addresses(self) -> list[int]:
        """The first address of each rank's numbers, by rank, for this rank's GPU."""
        ...

    def fill(self, number: int) -> None:
        """Sets this rank's numbers as if all peers had sent this one."""
        ...


class AddressedBuffer(SymmetricBuffer, Protocol):
    """Symmetric memory of GPUs."""

    def address(self, rank: int) -> int:
        """The first address of that rank's memory."""
        ...


class DeviceSignals:
    """Signals in symmetric memory of the GPUs."""

    def __init__(self, group: WorldGroup, buffer: AddressedBuffer) -> None:
        """
        Args:
            buffer: of `signal_bytes(world)`.
        """
        self._rank = group.rank
        self._world = group.world
        self._buffer = buffer

    def addresses(self) -> list[int]:
        return [self._buffer.address(rank) for rank in range(self._world)]

    def fill(self, number: int) -> None:
        """In the order of the current stream."""
        import torch

        self._buffer.view(self._rank, 0, (len(KINDS) * self._world,), torch.int32).fill_(number)


class HostSignals:
    """Signals in memory of the host that all ranks and their GPUs have mapped. No call to CUDA sets them."""

    def __init__(
        self, file: FileIO, rank: int, world: int, device: torch.device, driver: ctypes.CDLL
    ) -> None:
        """
        Args:
            file: of `file_bytes(world)`. It belongs to this object from now on.

        Raises:
            RuntimeError: the GPU cannot reach that memory.
        """
        memory = mmap.mmap(file.fileno(), file_bytes(world))
        file.close()
        self._rank = rank
        self._world = world
        self._numbers = (ctypes.c_uint32 * (file_bytes(world) // SIGNAL_BYTES)).from_buffer(memory)
        mapped = _MappedMemory(self._numbers, device, driver)
        self._begin = mapped.begin
        weakref.finalize(self, mapped.free).atexit = False  # the driver may have gone before the process ends

    @classmethod
    def attempt(cls, group: WorldGroup, driver: ctypes.CDLL) -> HostSignals:
        """All ranks call it together. Raises RuntimeError on all, with the reason, if it fails on one."""
        signals, reason = open_on_all_ranks(
            group,
            file_bytes(group.world),
            "signals",
            lambda file: cls(file, group.rank, group.world, group.device, driver),
        )
        if signals is None:
            raise RuntimeError(reason)
        return signals

    def addresses(self) -> list[int]:
        return [self._begin + rank * _rank_bytes(self._world) for rank in range(self._world)]

    def fill(self, number: int) -> None:
        begin = self._rank * _rank_bytes(self._world) // SIGNAL_BYTES
        for index in range(begin, begin + len(KINDS) * self._world):
            self._numbers[index] = number  # a store of 4 bytes: no GPU sees a part of it

    def close(self) -> None:
        """The memory goes with the last reference."""


def signal_bytes(world: int) -> int:
    """Size of the signals of one rank."""
    return len(KINDS) * world * SIGNAL_BYTES


def file_bytes(world: int) -> int:
    """Size of the file of `HostSignals`: whole pages."""
    return -(-world * _rank_bytes(world) // mmap.PAGESIZE) * mmap.PAGESIZE


def _rank_bytes(world: int) -> int:
    return -(-signal_bytes(world) // RANK_BYTES) * RANK_BYTES


class _MappedMemory:
    """Memory of the host that a GPU reaches."""

    def __init__(
        self, numbers: ctypes.Array[ctypes.c_uint32], device: torch.device, driver: ctypes.CDLL
    ) -> None:
        import torch

        # what is mapped must not be freed
        self._numbers = numbers
        self._driver = driver
        self._context = ctypes.c_void_p()
        begin = ctypes.c_uint64()
        address = ctypes.c_void_p(ctypes.addressof(numbers))
        num_bytes = ctypes.c_size_t(ctypes.sizeof(numbers))
        flags = ctypes.c_uint(FOR_ALL_GPUS | MAPPED)
        with torch.cuda.device(device):
            torch.cuda.synchronize(device)  # it makes this GPU's context current, which the driver asks for
            called(driver.cuCtxGetCurrent, ctypes.byref(self._context))
            called(driver.cuMemHostRegister_v2, address, num_bytes, flags)
            try:
                called(driver.cuMemHostGetDevicePointer_v2, ctypes.byref(begin), address, ctypes.c_uint(0))
            except RuntimeError:
                self.free()
                raise
        self.begin = begin.value
        """its address for the GPU"""

    def free(self) -> None:
        """Waits for all work of the GPU, which may read a number."""
        # the thread that frees it may have no context
        if self._driver.cuCtxPushCurrent_v2(self._context) == 0:
            self._driver.cuCtxSynchronize()
            self._driver.cuMemHostUnregister(ctypes.c_void_p(ctypes.addressof(self._numbers)))
            self._driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


def called(operation: Callable[..., int], *arguments: Any) -> None:
    """Calls a function of the driver. Raises RuntimeError if it fails."""
    status = operation(*arguments)
    if status:
        name = getattr(operation, "__name__", "a call")
        raise RuntimeError(f"{name} failed: CUDA driver error {status}")
