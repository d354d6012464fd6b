"""Symmetric memory of GPUs in one machine, and CUDA streams that send and wait for signals.

Memory comes from torch's symmetric memory, peer to peer, without multicast. Streams wait for signals and
write them to peers by the driver's stream memory operations, which need no multiprocessor (an attention
kernel may occupy all of them). A stream whose peer has failed waits forever, as do its dependents; the
launcher must end these ranks.
"""

from __future__ import annotations

import ctypes
import math
import os
import time
import weakref
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch

    from longca.cp.comm.process_group import WorldGroup
    from longca.cp.comm.symmetric import Signal

DRIVER = "libcuda.so.1"
# CU_STREAM_WAIT_VALUE_GEQ: by the sign of the difference in 32 bits, so that numbers may wrap
WAIT_AT_LEAST = 0
WRITE_AFTER_ALL = 0  # CU_STREAM_WRITE_VALUE_DEFAULT: earlier writes of the stream are visible with the number
NUMBERS = 1 << 32
LARGEST_NUMBER = (1 << 31) - 1
"""a signal beyond every wait"""
RELEASE_S, POLL_S = 2.0, 0.01
SIGNAL_ROWS = {"ready": 0, "full": 1}
SIGNAL_BYTES = 4

T = TypeVar("T")


class CudaSymmetricMemory:
    """The symmetric memory of one rank.

    An unreferenced buffer is freed by the next `release`, not immediately. Freeing waits for all work of the
    GPU, which may wait for a failed peer; a failing rank must be able to report its error first.
    """

    def __init__(self, group: WorldGroup) -> None:
        self._group = group
        self._held: list[tuple[weakref.ref[CudaSymmetricBuffer], torch.Tensor, Any]] = []
        self._streams: list[weakref.ref[CudaSignalStream]] = []

    @property
    def held_bytes(self) -> int:
        return sum(tensor.nbytes for _, tensor, _ in self._held)

    def release(self) -> None:
        self._held = [held for held in self._held if held[0]() is not None]

    @cached_property
    def driver(self) -> ctypes.CDLL:
        """The CUDA driver. Raises OSError without one."""
        return ctypes.CDLL(DRIVER)

    def allocate(self, num_bytes: int) -> CudaSymmetricBuffer:
        self.release()
        buffer = CudaSymmetricBuffer(self._group, num_bytes)
        self._held.append((weakref.ref(buffer), buffer.tensor, buffer.handle))
        return buffer

    def signal_stream(self) -> CudaSignalStream:
        signals = self.allocate(len(SIGNAL_ROWS) * self._group.world * SIGNAL_BYTES)
        stream = CudaSignalStream(self._group, signals, self.driver)
        self._streams.append(weakref.ref(stream))
        return stream

    def release_waits(self) -> None:
        """Releases streams that wait for signals of peers. Buffers are unchanged."""
        for reference in self._streams:
            if (stream := reference()) is not None:
                stream.release_waits()


class CudaSymmetricBuffer:
    """Implements `buffers.SymmetricBuffer`."""

    def __init__(self, group: WorldGroup, num_bytes: int) -> None:
        """Raises RuntimeError on all ranks, with the reason, if one has no such memory."""
        from torch.distributed import _symmetric_memory as symmetric

        os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"  # torch reads it at the first rendezvous
        self._rank = group.rank
        self.tensor = _on_all_ranks(group, lambda: _allocate(num_bytes, group.device))
        self.handle: Any = _on_all_ranks(group, lambda: symmetric.rendezvous(self.tensor, group.torch_group))

    def view(self, rank: int, start_byte: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        if rank == self._rank:  # a slice keeps the whole tensor alive, a view of a peer's buffer does not
            end_byte = start_byte + math.prod(shape) * dtype.itemsize
            return self.tensor[start_byte:end_byte].view(dtype).view(*shape)
        return self.handle.get_buffer(rank, tuple(shape), dtype, start_byte // dtype.itemsize)

    def address(self, rank: int) -> int:
        import torch

        return self.view(rank, 0, (1,), torch.uint8).data_ptr()


class CudaSignalStream:
    """Implements `symmetric.SignalStream` by a CUDA stream of high priority."""

    def __init__(self, group: WorldGroup, signals: CudaSymmetricBuffer, driver: ctypes.CDLL) -> None:
        """
        Args:
            signals: 4-byte numbers, (2, world): the last "ready" and the last "full" signal from each rank to
                this one.

        Raises:
            RuntimeError: on all ranks, with the reason, if one cannot begin.
        """
        self._group, self._signals, self._driver = group, signals, driver
        # no rank sends a signal before all counters are 0
        self._stream, self._addresses = _on_all_ranks(group, self._begin)

    def _begin(self) -> tuple[Any, list[int]]:
        import torch

        self.fill_signals(0)
        torch.cuda.synchronize(self._group.device)
        return torch.cuda.Stream(self._group.device, priority=-1), [
            self._signals.address(rank) for rank in range(self._group.world)
        ]

    def wait_for_current(self) -> None:
        import torch

        self._stream.wait_stream(torch.cuda.current_stream(self._group.device))

    def send_signal(self, peer: int, signal: Signal, number: int) -> None:
        self._do(
            self._driver.cuStreamWriteValue32_v2,
            self._address(peer, signal, self._group.rank),
            number,
            WRITE_AFTER_ALL,
        )

    def wait_signal(self, peer: int, signal: Signal, number: int) -> None:
        self._do(
            self._driver.cuStreamWaitValue32_v2,
            self._address(self._group.rank, signal, peer),
            number,
            WAIT_AT_LEAST,
        )

    def write(self, target: torch.Tensor, x: torch.Tensor) -> None:
        import torch

        with torch.cuda.stream(self._stream):
            # contiguous, of one dtype, between two GPUs: a copy engine's work
            target.copy_(x, non_blocking=True)

    def record_event(self) -> Any:
        return self._stream.record_event()

    def fill_signals(self, number: int) -> None:
        """Sets this rank's signals, on the current stream, as if all peers had sent this number."""
        import torch

        self._signals.view(self._group.rank, 0, (len(SIGNAL_ROWS) * self._group.world,), torch.int32).fill_(
            number
        )

    def release_waits(self) -> None:
        """Releases all work of this stream, independent of peers.

        Another stream sets the signals, since this one waits. An active peer may overwrite them, so this is
        repeated.
        """
        import torch

        release, deadline = torch.cuda.Stream(self._group.device), time.monotonic() + RELEASE_S
        while not self._stream.query() and time.monotonic() < deadline:
            with torch.cuda.stream(release):
                self.fill_signals(LARGEST_NUMBER)
            time.sleep(POLL_S)

    def _address(self, rank: int, signal: Signal, sender: int) -> int:
        return self._addresses[rank] + (SIGNAL_ROWS[signal] * self._group.world + sender) * SIGNAL_BYTES

    def _do(self, operation: Any, address: int, number: int, flags: int) -> None:
        status = operation(
            ctypes.c_void_p(self._stream.cuda_stream),
            ctypes.c_uint64(address),
            ctypes.c_uint32(number % NUMBERS),
            ctypes.c_uint(flags),
        )
        if status:
            raise RuntimeError(f"{operation.__name__} failed: CUDA driver error {status}")


def _on_all_ranks(group: WorldGroup, work: Callable[[], T]) -> T:
    """The result of local work. Raises RuntimeError on all ranks if it fails on one."""
    results, reason = [], ""
    try:
        results.append(work())
    except Exception as error:  # torch, the store and the driver raise many kinds of errors
        reason = f"rank {group.rank}, symmetric memory: {error}"
    for of_rank in filter(None, group.gather(reason)):
        raise RuntimeError(of_rank)
    return results[0]


def _allocate(num_bytes: int, device: torch.device) -> torch.Tensor:
    """Memory directly from the driver, since torch's pool for symmetric memory would keep freed memory.

    So torch's allocator does not count it.
    """
    import torch
    from torch._C._distributed_c10d import _SymmetricMemory

    def attempt() -> torch.Tensor:
        return _SymmetricMemory.empty_strided_p2p((num_bytes,), (1,), torch.uint8, device)

    try:
        return attempt()
    except RuntimeError:  # torch's allocator may hold the missing memory in its cache
        torch.cuda.empty_cache()
        return attempt()
