"""Symmetric memory of GPUs in one machine, and CUDA streams that send and wait for signals.

Memory comes from torch's symmetric memory, peer to peer, without multicast. A stream waits for a number, and
writes one to a peer, by stream memory operations of the driver. Neither needs a multiprocessor: an attention
kernel that takes all of them would not give one.
A stream whose peer is gone waits until its signals are set for the peer: see
`CudaSignalStream.release_waits`.
"""

from __future__ import annotations

import ctypes
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from longca.cp.comm.signals import KINDS, SIGNAL_BYTES, DeviceSignals, HostSignals, called, signal_bytes

if TYPE_CHECKING:
    import torch

    from longca.cp.comm.meeting import Meeting
    from longca.cp.comm.process_group import WorldGroup
    from longca.cp.comm.signals import Signals
    from longca.cp.comm.symmetric import Signal

DRIVER = "libcuda.so.1"
# CU_STREAM_WAIT_VALUE_GEQ: by the sign of the difference in 32 bits, so that numbers may wrap
WAIT_AT_LEAST = 0
# CU_STREAM_WRITE_VALUE_DEFAULT: whoever sees the number sees what the stream has written before
WRITE_AFTER_ALL = 0
NOT_READY = 600  # CUDA_ERROR_NOT_READY
NUMBERS = 1 << 32
LARGEST_NUMBER = (1 << 31) - 1
"""a signal that no wait is ahead of"""
RELEASE_S = 2.0
POLL_S = 0.01

T = TypeVar("T")


class CudaSymmetricMemory:
    """The symmetric memory of one rank.

    A buffer that nobody refers to any more is freed by the next `release`, not at once. To free it, the
    driver waits for all work of the GPU, which may wait for a peer that is gone; a rank that fails must be
    able to say so first.
    """

    def __init__(self, group: WorldGroup) -> None:
        self._group = group
        self._meeting: Meeting | None = None
        self._held: list[tuple[weakref.ref[CudaSymmetricBuffer], torch.Tensor, Any]] = []
        self._streams: list[tuple[weakref.ref[CudaSignalStream], Signals]] = []
        self.signals_on_host = False
        """signals of streams made from now on lie in memory of the host: a rank can set its own whatever its
        GPU does"""

    @property
    def held_bytes(self) -> int:
        return sum(tensor.nbytes for _, tensor, _ in self._held)

    def release(self) -> None:
        self._streams = [held for held in self._streams if held[0]() is not None]
        self._held = [held for held in self._held if held[0]() is not None]

    @cached_property
    def driver(self) -> ctypes.CDLL:
        """The CUDA driver. Raises OSError where there is none."""
        return ctypes.CDLL(DRIVER)

    def allocate(self, num_bytes: int) -> CudaSymmetricBuffer:
        """All ranks allocate together. Raises RuntimeError on all, with the reason, if one cannot."""
        self.release()
        if self._meeting is None:
            from longca.cp.comm.meeting import Meeting

            self._meeting = _on_all_ranks(self._group, lambda: Meeting(self._group))
        buffer = CudaSymmetricBuffer(self._group, num_bytes, self._meeting)
        self._held.append((weakref.ref(buffer), buffer.tensor, buffer.handle))
        return buffer

    def signal_stream(self) -> CudaSignalStream:
        """Raises RuntimeError on all ranks, with the reason, if one cannot begin."""
        signals: Signals
        if self.signals_on_host:
            signals = HostSignals.attempt(self._group, self.driver)
        else:
            signals = DeviceSignals(self._group, self.allocate(signal_bytes(self._group.world)))
        stream = CudaSignalStream(self._group, signals, self.driver)
        self._streams.append((weakref.ref(stream), signals))
        return stream

    def release_waits(self) -> None:
        """Lets streams go on that wait for signals of peers. Buffers keep what was there."""
        for reference, _ in self._streams:
            if (stream := reference()) is not None:
                stream.release_waits()


class CudaSymmetricBuffer:
    """Implements `buffers.SymmetricBuffer`."""

    def __init__(self, group: WorldGroup, num_bytes: int, meeting: Meeting) -> None:
        """Raises RuntimeError on all ranks, with the reason, if one has no such memory."""
        from torch.distributed import _symmetric_memory as symmetric

        os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"  # torch looks when ranks first meet
        self._rank = group.rank
        self.tensor = _on_all_ranks(group, lambda: _allocate(num_bytes, group.device))
        self.handle: Any = _on_all_ranks(group, lambda: symmetric.rendezvous(self.tensor, meeting.name))

    def view(self, rank: int, start_byte: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        if (
            rank == self._rank
        ):  # a slice of the tensor keeps the whole alive, a view of a peer's buffer does not
            end_byte = start_byte + math.prod(shape) * dtype.itemsize
            return self.tensor[start_byte:end_byte].view(dtype).view(*shape)
        return self.handle.get_buffer(rank, tuple(shape), dtype, start_byte // dtype.itemsize)

    def address(self, rank: int) -> int:
        import torch

        return self.view(rank, 0, (1,), torch.uint8).data_ptr()


class CudaSignalStream:
    """Implements `symmetric.SignalStream` by a CUDA stream of high priority."""

    def __init__(self, group: WorldGroup, signals: Signals, driver: ctypes.CDLL) -> None:
        """
        Raises:
            RuntimeError: on all ranks, with the reason, if one cannot begin.
        """
        self._group = group
        self._signals = signals
        self._driver = driver
        self._stream, self._addresses = _on_all_ranks(
            group, self._begin
        )  # nobody sends a signal before all have begun at 0

    def _begin(self) -> tuple[Any, list[int]]:
        import torch

        self.fill_signals(0)
        torch.cuda.synchronize(self._group.device)
        return torch.cuda.Stream(self._group.device, priority=-1), self._signals.addresses()

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
            target.copy_(
                x, non_blocking=True
            )  # contiguous, of one dtype, between two GPUs: a copy engine's work

    def record_event(self) -> Any:
        return self._stream.record_event()

    def fill_signals(self, number: int) -> None:
        """Sets this rank's signals as if all peers had sent this number. In memory of the GPU: from the
        current stream."""
        self._signals.fill(number)

    def release_waits(self) -> None:
        """Lets all work of this stream go on, whatever peers do.

        A peer that is not done may set signals back, so they are set again until the stream is done. If they
        lie on the host, no call to CUDA can hold that up, nor this method.
        """
        if isinstance(self._signals, DeviceSignals):
            self._release_from_the_gpu()
            return
        is_done = threading.Event()
        self._signals.fill(LARGEST_NUMBER)
        for work in (self._set_signals, self._await_work):
            threading.Thread(target=work, args=(is_done,), name="release of messages", daemon=True).start()

    def _set_signals(self, is_done: threading.Event) -> None:
        while not is_done.wait(POLL_S):
            self._signals.fill(LARGEST_NUMBER)

    def _await_work(self, is_done: threading.Event) -> None:
        """In a thread of its own, and not by torch, which keeps the interpreter: even this question may wait
        for the GPU."""
        stream = ctypes.c_void_p(self._stream.cuda_stream)
        context = ctypes.c_void_p()
        status = NOT_READY
        if self._driver.cuStreamGetCtx(stream, ctypes.byref(context)) == 0:
            self._driver.cuCtxSetCurrent(context)  # a new thread has none
        while status == NOT_READY:
            time.sleep(POLL_S)
            status = self._driver.cuStreamQuery(stream)
        if status:  # there is no answer
            time.sleep(RELEASE_S)
        is_done.set()

    def _release_from_the_gpu(self) -> None:
        """From another stream, since this one waits."""
        import torch

        release = torch.cuda.Stream(self._group.device)
        deadline = time.monotonic() + RELEASE_S
        while not self._stream.query() and time.monotonic() < deadline:
            with torch.cuda.stream(release):
                self.fill_signals(LARGEST_NUMBER)
            time.sleep(POLL_S)

    def _address(self, rank: int, signal: Signal, sender: int) -> int:
        return self._addresses[rank] + (KINDS.index(signal) * self._group.world + sender) * SIGNAL_BYTES

    def _do(self, operation: Any, address: int, number: int, flags: int) -> None:
        called(
            operation,
            ctypes.c_void_p(self._stream.cuda_stream),
            ctypes.c_uint64(address),
            ctypes.c_uint32(number % NUMBERS),
            ctypes.c_uint(flags),
        )


def _on_all_ranks(group: WorldGroup, work: Callable[[], T]) -> T:
    """The result of a rank's own work. RuntimeError on all ranks if it fails on one."""
    results = []
    reason = ""
    try:
        results.append(work())
    except Exception as error:  # torch, the store and the driver say no in many ways
        reason = f"rank {group.rank}, symmetric memory: {error}"
    for of_rank in filter(None, group.gather(reason)):
        raise RuntimeError(of_rank)
    return results[0]


def _allocate(num_bytes: int, device: torch.device) -> torch.Tensor:
    """Memory straight from the driver: torch's pool for symmetric memory would keep what is freed.

    So torch's allocator does not count it.
    """
    import torch
    from torch._C._distributed_c10d import _SymmetricMemory

    def attempt() -> torch.Tensor:
        return _SymmetricMemory.empty_strided_p2p((num_bytes,), (1,), torch.uint8, device)

    try:
        return attempt()
    except RuntimeError:  # memory that torch's allocator keeps for later may be what is missing
        torch.cuda.empty_cache()
        return attempt()
