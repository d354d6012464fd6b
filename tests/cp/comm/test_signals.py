"""Signals in memory of the host: streams, here threads, wait for numbers in a file that ranks share."""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

import pytest
import torch

from longca.cp.calls.agreement import Agreement
from longca.cp.comm import backend, machine
from longca.cp.comm.backend import Comm, why_not_on_host
from longca.cp.comm.signals import HostSignals
from longca.cp.comm.symmetric_cuda import LARGEST_NUMBER, NOT_READY, NUMBERS, CudaSymmetricMemory
from tests.helpers.cp.ranks import on_ranks
from tests.helpers.cp.virtual import Job
from tests.helpers.cp.virtual_memory import SharedMemory, SymmetricVirtualComm

WORLD = 3
PATIENCE_S = 20.0


class Driver:
    """CUDA's driver, on streams that are threads."""

    def __init__(self) -> None:
        self.refuses = ""
        self.is_locked = threading.Event()
        self.mapped: set[int] = set()

    def cuStreamWriteValue32_v2(self, stream: Any, address: Any, number: Any, flags: Any) -> int:
        STREAMS[stream.value].then(lambda: _set(address.value, number.value))
        return 0

    def cuStreamWaitValue32_v2(self, stream: Any, address: Any, number: Any, flags: Any) -> int:
        STREAMS[stream.value].then(lambda: _wait_for(address.value, number.value))
        return 0

    def cuStreamQuery(self, stream: Any) -> int:
        while self.is_locked.is_set() and not STREAMS[stream.value].query():
            time.sleep(1e-3)  # as while another thread copies from the GPU into pageable memory
        return 0 if STREAMS[stream.value].query() else NOT_READY

    def cuStreamGetCtx(self, stream: Any, context: Any) -> int:
        return 0

    def cuCtxSetCurrent(self, context: Any) -> int:
        return 0

    def cuCtxGetCurrent(self, context: Any) -> int:
        return 0

    def cuCtxPushCurrent_v2(self, context: Any) -> int:
        return 0

    def cuCtxSynchronize(self) -> int:
        return 0

    def cuCtxPopCurrent_v2(self, context: Any) -> int:
        return 0

    def cuMemHostRegister_v2(self, address: Any, num_bytes: Any, flags: Any) -> int:
        assert address.value % 4096 == num_bytes.value % 4096 == 0 and flags.value == 3
        if self.refuses == "register":
            return 801
        self.mapped.add(address.value)
        return 0

    def cuMemHostGetDevicePointer_v2(self, begin: Any, address: Any, flags: Any) -> int:
        begin._obj.value = address.value
        return 1 if self.refuses == "address" else 0

    def cuMemHostUnregister(self, address: Any) -> int:
        ctypes.c_uint32.from_address(address.value)  # else it would be a crash: it must still be there
        self.mapped.remove(address.value)
        return 0


def _set(address: int, number: int) -> None:
    ctypes.c_uint32.from_address(address).value = number


def _wait_for(address: int, number: int) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while (ctypes.c_uint32.from_address(address).value - number) % NUMBERS >= NUMBERS // 2:
        assert time.monotonic() < deadline_s, "nobody sends it"
        time.sleep(1e-4)


STREAMS: dict[int, Stream] = {}


class Stream:
    def __init__(self, *_: Any, **__: Any) -> None:
        self._work: list[Future[None]] = []
        self._thread = ThreadPoolExecutor(1)
        self.cuda_stream = id(self)
        STREAMS[self.cuda_stream] = self  # for ever: no other gets its id

    def then(self, work: Callable[[], None]) -> None:
        self._work.append(self._thread.submit(work))

    def record_event(self) -> Stream:
        return self

    def wait_stream(self, other: Any) -> None: ...

    def query(self) -> bool:
        return all(work.done() for work in self._work)


class Buffer:
    """Memory of GPUs, without peers: messages are not what is tried here."""

    def __init__(self, group: Any, num_bytes: int, meeting: Any) -> None:
        self.tensor = torch.zeros(num_bytes, dtype=torch.uint8)
        self.handle = None
        self._world = group.world
        self._shared = group._shared
        group.gather(None)
        self._shared.buffers[group.rank, 0] = self.tensor
        group.gather(None)

    def view(self, rank: int, start_byte: int, shape: Any, dtype: torch.dtype) -> torch.Tensor:
        end_byte = start_byte + torch.Size(shape).numel() * dtype.itemsize
        return self._shared.buffers[rank, 0][start_byte:end_byte].view(dtype).view(*shape)

    def address(self, rank: int) -> int:
        return self._shared.buffers[rank, 0].data_ptr()


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    for name in ("stream", "device"):
        monkeypatch.setattr(torch.cuda, name, lambda chosen: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr("longca.cp.comm.symmetric_cuda.CudaSymmetricBuffer", Buffer)
    monkeypatch.setattr("longca.cp.comm.meeting.Meeting", lambda group: None)


def on_threads(call: Callable[[Any, CudaSymmetricMemory, Driver], Any]) -> list[Any]:
    job = Job(WORLD)
    shared = SharedMemory()

    def on_rank(rank: int) -> Any:
        comm: Any = SymmetricVirtualComm(rank, WORLD, job, shared)
        comm.device = torch.device("cpu")
        memory = CudaSymmetricMemory(comm)
        driver = Driver()
        memory.__dict__["driver"] = driver
        return call(comm, memory, driver)

    with ThreadPoolExecutor(WORLD) as pool:
        return list(pool.map(on_rank, range(WORLD)))


def test_a_trial_sends_a_message_and_releases_a_stream():
    assert on_threads(lambda comm, memory, driver: why_not_on_host(comm, memory)) == [None] * WORLD


@pytest.mark.parametrize("refuses", ["register", "address"])
def test_all_ranks_hear_of_one_whose_gpu_cannot_reach_the_host(refuses: str):
    def ask(comm: Any, memory: CudaSymmetricMemory, driver: Driver) -> tuple[str | None, bool, set[int]]:
        driver.refuses = refuses if comm.rank == 1 else ""
        reason = why_not_on_host(comm, memory)
        gc.collect()
        return reason, memory.signals_on_host, driver.mapped

    (first, *_), *_ = outcomes = on_threads(ask)
    assert first is not None and "rank 1: cuMemHost" in first and "CUDA driver error" in first
    assert outcomes == [(first, False, set())] * WORLD
    assert not any(Path(machine.SHARED_MEMORY).glob("longca-signals-*"))


def test_a_stream_that_is_not_released_is_heard(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(backend, "TRIAL_SECONDS", 0.2)
    monkeypatch.setattr("tests.cp.comm.test_signals.PATIENCE_S", 0.6)
    monkeypatch.setattr("longca.cp.comm.symmetric_cuda.CudaSignalStream.release_waits", lambda self: None)
    outcomes = on_threads(lambda comm, memory, driver: (why_not_on_host(comm, memory), memory))
    time.sleep(1.5 * PATIENCE_S)  # streams read the memory until then
    assert {reason for reason, _ in outcomes} == {"rank 0: a stream is not released in 0 s"}


def test_a_release_needs_nothing_of_cuda(monkeypatch: pytest.MonkeyPatch):
    """Any call to CUDA waits until the stream is done. Peers set signals back, and it waits again."""

    def refuse(*_: Any) -> NoReturn:
        raise AssertionError("a call to CUDA")

    def release(comm: Any, memory: CudaSymmetricMemory, driver: Driver) -> bool:
        memory.signals_on_host = True
        stream = memory.signal_stream()
        next_rank = (comm.rank + 1) % WORLD
        for number in (5, 6):
            stream.wait_signal(next_rank, "full", number)
        stream._stream.then(lambda: time.sleep(0.3))
        stream.wait_signal(next_rank, "full", 7)
        driver.is_locked.set()
        comm.gather(None)
        for name in ("Stream", "stream", "synchronize", "current_stream"):
            monkeypatch.setattr(torch.cuda, name, refuse)
        memory.release_waits()
        time.sleep(0.1)
        driver.cuStreamWriteValue32_v2(
            ctypes.c_void_p(late[comm.rank]), _address(stream, comm), ctypes.c_uint32(1), None
        )
        deadline_s = time.monotonic() + PATIENCE_S / 2
        while not stream._stream.query() and time.monotonic() < deadline_s:
            time.sleep(0.01)
        return stream._stream.query()

    def _address(stream: Any, comm: Any) -> ctypes.c_uint64:
        return ctypes.c_uint64(stream._address(comm.rank, "full", (comm.rank + 1) % WORLD))

    late = [Stream().cuda_stream for _ in range(WORLD)]
    assert on_threads(release) == [True] * WORLD


def test_memory_is_mapped_as_long_as_its_stream_and_its_release_need_it():
    def drop(comm: Any, memory: CudaSymmetricMemory, driver: Driver) -> list[int]:
        memory.signals_on_host = True
        counts = []
        stream = memory.signal_stream()
        counts.append(len(driver.mapped))
        del stream
        gc.collect()
        counts.append(len(driver.mapped))
        comm.gather(None)
        memory.release()
        gc.collect()
        counts.append(len(driver.mapped))
        return counts

    assert on_threads(drop) == [[1, 1, 0]] * WORLD


def in_processes(comm: Comm) -> tuple[list[int], list[int], bool]:
    """Each rank's signal of each peer before, and after it has set its own."""
    torch.cuda.device = lambda device: nullcontext()  # type: ignore
    torch.cuda.synchronize = lambda device: None  # type: ignore
    signals = HostSignals.attempt(comm, Driver())  # type: ignore[arg-type]
    for peer, begin in enumerate(signals.addresses()):
        _set(begin + 4 * (comm.world + comm.rank), 100 * comm.rank + peer + 1)  # "full"
    comm.gather(None)
    begin = signals.addresses()[comm.rank]
    before = [ctypes.c_uint32.from_address(begin + 4 * index).value for index in range(2 * comm.world)]
    comm.gather(None)
    if comm.rank == 0:
        signals.fill(LARGEST_NUMBER)
    comm.gather(None)
    after = [ctypes.c_uint32.from_address(begin + 4 * index).value for index in range(2 * comm.world)]
    return before, after, any(Path(machine.SHARED_MEMORY).glob("longca-signals-*"))


def test_processes_see_each_others_signals_and_set_their_own_alone():
    for rank, (before, after, is_left) in enumerate(on_ranks(in_processes, WORLD)):
        assert before == [0] * WORLD + [100 * peer + rank + 1 for peer in range(WORLD)]
        assert after == ([LARGEST_NUMBER] * 2 * WORLD if rank == 0 else before)
        assert not is_left


def waiting(comm: Comm) -> list[tuple[str, bool]]:
    """By messages: the note, and whether ranks compare each call."""
    answers = []
    for messages, releasable, refusal in (
        ("nccl", True, None),
        ("symmetric", False, None),
        ("symmetric", True, "no room"),
        ("symmetric", True, None),
    ):
        comm._refused_on_host = None
        with (
            patch.object(backend, "why_not_symmetric", lambda group, memory: None),
            patch.object(backend, "why_not_on_host", lambda group, memory, refusal=refusal: refusal),
        ):
            comm.use(messages, releasable)  # type: ignore[arg-type]
        agreement = Agreement(comm, waits=False)
        answers.append((comm.messages_note.partition("; ")[2], agreement._waits))
        comm.gather(None)
        agreement.close(is_failing=False)
    comm.use("nccl")
    return answers


def test_ranks_compare_each_call_where_messages_cannot_be_released():
    of_rank = [("", False), ("", True), ("its signals are in memory of the GPU: no room", True), ("", False)]
    assert on_ranks(waiting, 2) == [of_rank] * 2
