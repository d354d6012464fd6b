"""Streams that wait for what a peer tells, with host memory in place of the GPUs' and a driver that does at
once what it is asked."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, cast

import pytest
import torch

from longca.core import host
from longca.cp.comm import backend
from longca.cp.comm.backend import why_not_symmetric
from longca.cp.comm.signals import DeviceSignals
from longca.cp.comm.symmetric import SymmetricCommStream
from longca.cp.comm.symmetric_cuda import NUMBERS, CudaSignalStream
from tests.helpers.cp.virtual import Job
from tests.helpers.cp.virtual_memory import SharedMemory, SymmetricVirtualComm, VirtualSymmetricBuffer

WORLD = 3
PATIENCE_S = 2.0


class Driver:
    def __init__(self) -> None:
        self.refuses = False

    def cuStreamWriteValue32_v2(self, stream: Any, address: Any, number: Any, flags: Any) -> int:
        ctypes.c_uint32.from_address(address.value).value = number.value
        return 1 if self.refuses else 0

    def cuStreamWaitValue32_v2(self, stream: Any, address: Any, number: Any, flags: Any) -> int:
        deadline = time.monotonic() + PATIENCE_S
        while (ctypes.c_uint32.from_address(address.value).value - number.value) % NUMBERS >= NUMBERS // 2:
            assert time.monotonic() < deadline, "nobody tells"
            time.sleep(1e-4)
        return 0


class Stream:
    cuda_stream = 1

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def wait_stream(self, other: Any) -> None: ...

    def record_event(self) -> Any:
        return self

    def query(self) -> bool:
        return True

    def wait(self) -> None: ...


class Buffer(VirtualSymmetricBuffer):
    def address(self, rank: int) -> int:
        return self._buffers[rank].data_ptr()


class Memory:
    """As `CudaSymmetricMemory`."""

    def __init__(self, comm: SymmetricVirtualComm) -> None:
        self.comm = comm
        self.driver = Driver()

    def allocate(self, num_bytes: int) -> Buffer:
        return Buffer(self.comm.allocate(num_bytes)._buffers)

    def signal_stream(self) -> CudaSignalStream:
        return CudaSignalStream(
            cast(Any, self.comm), in_buffer(self.comm, self.allocate(2 * WORLD * 4)), cast(Any, self.driver)
        )


def in_buffer(comm: SymmetricVirtualComm, buffer: Buffer) -> DeviceSignals:
    return DeviceSignals(cast(Any, comm), cast(Any, buffer))


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)


def on_threads(call: Callable[[SymmetricVirtualComm, Memory], Any]) -> list[Any]:
    job = Job(WORLD)
    shared = SharedMemory()

    def on_rank(rank: int) -> Any:
        comm = SymmetricVirtualComm(rank, WORLD, job, shared)
        return call(comm, Memory(comm))

    with ThreadPoolExecutor(WORLD) as pool:
        return list(pool.map(on_rank, range(WORLD)))


def test_every_rank_hears_what_it_was_told_and_by_whom() -> None:
    """Rounds in which all send to all, each pair with another number of messages before."""

    def talk(comm: SymmetricVirtualComm, memory: Memory) -> list[list[int]]:
        whole: Any = comm
        stream = SymmetricCommStream(memory.signal_stream(), whole)
        buffer = memory.allocate(4 * WORLD)
        landed = buffer.view(comm.rank, 0, (WORLD, 1), torch.int32)
        heard = []

        class BufferOffset:
            def at(self, peer: int, x: torch.Tensor) -> torch.Tensor:
                return buffer.view(peer, 4 * comm.rank, x.shape, x.dtype)

        for number in range(1, 13):
            offset: Any = BufferOffset()
            others = [
                peer for peer in range(WORLD) if peer != comm.rank and number % (1 + peer + comm.rank) == 0
            ]
            sends = [
                (peer, torch.tensor([100 * number + comm.rank], dtype=torch.int32), offset) for peer in others
            ]
            stream.post(sends, [(peer, landed[peer]) for peer in others]).wait()
            heard.append([int(landed[peer]) - 100 * number for peer in others])
        return heard

    for rank, heard in enumerate(on_threads(talk)):
        assert heard == [
            [peer for peer in range(WORLD) if peer != rank and number % (1 + peer + rank) == 0]
            for number in range(1, 13)
        ]


def test_numbers_may_wrap() -> None:
    def count(comm: SymmetricVirtualComm, memory: Memory) -> bool:
        stream = memory.signal_stream()
        after = (comm.rank + 1) % WORLD
        before = (comm.rank - 1) % WORLD
        stream.fill_signals(-2)
        comm.gather(None)
        for number in range(NUMBERS - 1, NUMBERS + 3):
            stream.send_signal(after, "full", number)
            stream.wait_signal(before, "full", number)
        return True

    assert all(on_threads(count))


def test_a_stream_that_waits_for_a_peer_can_be_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peer's late signal sets the number back once: it is set again, until the stream is done."""

    def release(comm: SymmetricVirtualComm, memory: Memory) -> list[int]:
        stream = memory.signal_stream()
        after = (comm.rank + 1) % WORLD
        waiting = ThreadPoolExecutor(1).submit(stream.wait_signal, after, "full", 5)

        def is_done() -> bool:
            stream.send_signal(comm.rank, "full", 1)
            return waiting.done()

        monkeypatch.setattr(stream._stream, "query", is_done, raising=False)
        comm.gather(None)
        stream.release_waits()
        return [waiting.result(PATIENCE_S)]

    assert on_threads(release) == [[None]] * WORLD


def test_a_driver_that_refuses_is_heard() -> None:
    def ask(comm: SymmetricVirtualComm, memory: Memory) -> str:
        stream = memory.signal_stream()
        memory.driver.refuses = True
        with pytest.raises(
            RuntimeError, match="cuStreamWriteValue32_v2 failed: CUDA driver error 1"
        ) as refusal:
            stream.send_signal(0, "full", 1)
        return str(refusal.value)

    assert len(set(on_threads(ask))) == 1


def test_all_ranks_hear_of_one_that_cannot_begin() -> None:
    """Else that one would go on without the others, which wait for it."""

    def begin(comm: SymmetricVirtualComm, memory: Memory) -> str:
        class Unmapped(Buffer):
            def address(self, rank: int) -> int:
                raise RuntimeError("no such memory")

        buffer = memory.allocate(2 * WORLD * 4)
        numbers = in_buffer(comm, Unmapped(buffer._buffers) if comm.rank == 1 else buffer)
        with pytest.raises(RuntimeError, match="rank 1, symmetric memory: no such memory") as refusal:
            CudaSignalStream(cast(Any, comm), numbers, cast(Any, memory.driver))
        return str(refusal.value)

    assert len(set(on_threads(begin))) == 1


def test_the_trial_sends_a_message_and_all_ranks_hear_of_one_that_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host, "BOOT", host.BOOT.with_name("nowhere"))
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda here, there: True)
    full = torch.full
    monkeypatch.setattr(torch, "full", lambda *what, device=None, **how: full(*what, **how))

    def ask(refuses: bool = False, **where: Any) -> set[str | None]:
        def tell(comm: SymmetricVirtualComm, memory: Memory) -> str | None:
            memory.driver.refuses = refuses and comm.rank == 1
            gpus: Any = _OnGpus(comm, **where)
            memory.comm, of_gpus = gpus, cast(Any, memory)
            return why_not_symmetric(gpus, of_gpus)

        return set(on_threads(tell))

    assert ask() == {None}
    assert ask(index=0) == {"ranks call their GPUs by the same number, as where each sees its own alone"}
    (reason,) = ask(refuses=True)
    assert reason is not None and reason.startswith("rank 1: RuntimeError: cuStreamWriteValue32_v2 failed")
    with monkeypatch.context() as patch:
        patch.setattr(Stream, "query", lambda self: False)
        patch.setattr(backend, "TRIAL_SECONDS", 0.1)
        assert ask() == {"rank 0: a message has not arrived in 0 s"}
    lock = threading.Lock()
    names = iter(["here", "there", "here"])

    def machine() -> str:
        with lock:
            return next(names)

    monkeypatch.setattr(host.platform, "node", machine)
    assert ask() == {"the ranks are on several machines"}


class _OnGpus:
    """A rank's comm, as if it had a GPU; tensors stay on the host."""

    def __init__(self, comm: SymmetricVirtualComm, index: int | None = None) -> None:
        self._comm = comm
        self.device = _Device(comm.rank if index is None else index)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)


class _Device:
    type = "cuda"

    def __init__(self, index: int) -> None:
        self.index = index
