"""Symmetric memory of ranks that are threads: buffers of host memory, streams that are threads, and numbers
under a lock."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from longca.cp.comm.p2p import Pending, SymmetricReceiveBuffers
from longca.cp.comm.symmetric import Signal, SymmetricCommStream
from tests.helpers.cp.virtual import WAIT_S, Job, Message, Outgoing, VirtualComm

PAUSE_S = 1e-3
DAMAGE = 0xFF
"""bytes of NaN, in every floating dtype"""


class SharedMemory:
    """The memory that the ranks of a job share beside their mail."""

    def __init__(self) -> None:
        self.buffers: dict[tuple[int, int], torch.Tensor] = {}
        self.told: dict[tuple[Any, ...], int] = {}
        self.change = threading.Condition()


class VirtualSymmetricBuffer:
    def __init__(self, buffers: list[torch.Tensor]) -> None:
        self._buffers = buffers

    def view(self, rank: int, start_byte: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        num_bytes = dtype.itemsize * torch.Size(shape).numel()
        return self._buffers[rank][start_byte : start_byte + num_bytes].view(dtype).view(*shape)


class VirtualSignalStream:
    def __init__(self, shared: SharedMemory, rank: int, name: str) -> None:
        self._shared = shared
        self._rank = rank
        self._name = name
        self._stream = ThreadPoolExecutor(1)
        self._pause = random.Random(f"{name} {rank}")
        self._done: list[Future[None]] = []

    def wait_for_current(self) -> None:
        """A rank's computations are done when it posts."""

    def send_signal(self, peer: int, signal: Signal, number: int) -> None:
        self._then(self._set_signal, (self._name, peer, signal, self._rank), number)

    def wait_signal(self, peer: int, signal: Signal, number: int) -> None:
        self._then(self._wait_for, (self._name, self._rank, signal, peer), number)

    def write(self, target: torch.Tensor, x: torch.Tensor) -> None:
        assert x.is_contiguous() and target.shape == x.shape
        self._then(target.copy_, x)

    def damage(self, x: torch.Tensor) -> None:
        """A rank that reads it too early sees that."""
        self._then(x.fill_, torch.nan)

    def record_event(self) -> VirtualSignalEvent:
        done = self._done
        self._done = []
        return VirtualSignalEvent(done)

    def _then(self, work: Callable[..., object], *arguments: object) -> None:
        def later() -> None:
            time.sleep(self._pause.random() * PAUSE_S)
            work(*arguments)

        self._done.append(self._stream.submit(later))

    def _set_signal(self, key: tuple[Any, ...], number: int) -> None:
        with self._shared.change:
            self._shared.told[key] = number
            self._shared.change.notify_all()

    def _wait_for(self, key: tuple[Any, ...], number: int) -> None:
        with self._shared.change:
            assert self._shared.change.wait_for(lambda: self._shared.told.get(key, 0) >= number, WAIT_S), (
                f"{key}: {number} is never told"
            )


class VirtualSignalEvent:
    def __init__(self, done: list[Future[None]]) -> None:
        self._done = done

    def wait(self) -> None:
        for entry in self._done:
            entry.result(WAIT_S)


class DamagingCommStream(SymmetricCommStream):
    """One that damages what is received into as soon as that is allowed."""

    def __init__(self, stream: VirtualSignalStream, comm: Any, mine: Callable[[torch.Tensor], bool]) -> None:
        super().__init__(stream, comm)
        self._damage = stream.damage
        self._mine = mine

    def post(self, sends: Sequence[Outgoing], receives: Sequence[Message]) -> Pending:
        for _, x in receives:
            assert not x.numel() or self._mine(x), "what is received into is no place that peers can write to"
            self._damage(x)
        return super().post(sends, receives)


class SymmetricVirtualComm(VirtualComm):
    def __init__(self, rank: int, world: int, job: Job, shared: SharedMemory) -> None:
        super().__init__(rank, world, job, keeps_order=True)
        self._shared = shared
        self._num_buffers = 0
        self._streams: dict[str, Any] = {}

    def gather(self, mine: Any) -> list[Any]:
        self._job.board[self.rank] = mine
        self._job.meet(self._ranks)
        values = list(self._job.board)
        self._job.meet(self._ranks)
        return values

    def allocate(self, num_bytes: int) -> VirtualSymmetricBuffer:
        assert len(set(self.gather(num_bytes))) == 1, "all ranks have as much"
        number = self._num_buffers
        self._num_buffers = self._num_buffers + 1
        self._shared.buffers[number, self.rank] = torch.full((num_bytes,), DAMAGE, dtype=torch.uint8)
        self.gather(None)
        return VirtualSymmetricBuffer([self._shared.buffers[number, rank] for rank in range(self.world)])

    def receive_buffers(self) -> SymmetricReceiveBuffers:
        comm: Any = self
        return SymmetricReceiveBuffers(comm, self)

    def stream(self, name: str) -> Any:
        if name not in self._streams:
            self._streams[name] = DamagingCommStream(
                VirtualSignalStream(self._shared, self.rank, name), self, self._is_mine
            )
        return self._streams[name]

    def _is_mine(self, x: torch.Tensor) -> bool:
        buffers = (buffer for (_, rank), buffer in self._shared.buffers.items() if rank == self.rank)
        return any(
            buffer.data_ptr() <= x.data_ptr() < buffer.data_ptr() + buffer.numel() for buffer in buffers
        )


def on_symmetric_ranks(call: Callable[[SymmetricVirtualComm], Any], world: int) -> list[Any]:
    """call(comm) on every rank at once → results by rank."""
    job = Job(world)
    shared = SharedMemory()
    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(lambda rank: call(SymmetricVirtualComm(rank, world, job, shared)), range(world)))
