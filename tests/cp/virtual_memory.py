"""Symmetric memory of ranks that are threads: heaps of host memory, streams that are threads, and numbers under a lock."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from longca.cp.comm.buffers import SymmetricReceiveBuffers
from longca.cp.comm.flow import Signal
from longca.cp.comm.p2p import Pending
from longca.cp.comm.symmetric import SymmetricCommStream
from tests.cp.virtual import WAIT_S, Job, Message, Outgoing, VirtualComm

PAUSE_S = 1e-3
DAMAGE = 0xFF
"""bytes of NaN, in every floating dtype"""


class SharedMemory:
    """What the ranks of a job share beside their mail."""

    def __init__(self) -> None:
        self.heaps: dict[tuple[int, int], torch.Tensor] = {}
        self.told: dict[tuple[Any, ...], int] = {}
        self.change = threading.Condition()


class VirtualHeap:
    def __init__(self, heaps: list[torch.Tensor]) -> None:
        self._heaps = heaps

    def view(self, rank: int, first_byte: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        num_bytes = dtype.itemsize * torch.Size(shape).numel()
        return self._heaps[rank][first_byte:first_byte + num_bytes].view(dtype).view(*shape)


class VirtualWire:
    def __init__(self, shared: SharedMemory, rank: int, name: str) -> None:
        self._shared, self._rank, self._name = shared, rank, name
        self._stream, self._pause = ThreadPoolExecutor(1), random.Random(f"{name} {rank}")
        self._done: list[Future[None]] = []

    def follow(self) -> None:
        """What a rank computes is done when it posts."""

    def tell(self, peer: int, signal: Signal, number: int) -> None:
        self._then(self._tell, (self._name, peer, signal, self._rank), number)

    def wait_for(self, peer: int, signal: Signal, number: int) -> None:
        self._then(self._wait_for, (self._name, self._rank, signal, peer), number)

    def write(self, there: torch.Tensor, x: torch.Tensor) -> None:
        assert x.is_contiguous() and there.shape == x.shape
        self._then(there.copy_, x)

    def damage(self, x: torch.Tensor) -> None:
        """Who reads it too early sees that."""
        self._then(x.fill_, torch.nan)

    def mark(self) -> VirtualMark:
        done, self._done = self._done, []
        return VirtualMark(done)

    def _then(self, work: Callable[..., object], *arguments: object) -> None:
        def later() -> None:
            time.sleep(self._pause.random() * PAUSE_S)
            work(*arguments)

        self._done.append(self._stream.submit(later))

    def _tell(self, key: tuple[Any, ...], number: int) -> None:
        with self._shared.change:
            self._shared.told[key] = number
            self._shared.change.notify_all()

    def _wait_for(self, key: tuple[Any, ...], number: int) -> None:
        with self._shared.change:
            assert self._shared.change.wait_for(lambda: self._shared.told.get(key, 0) >= number, WAIT_S), f"{key}: {number} is never told"


class VirtualMark:
    def __init__(self, done: list[Future[None]]) -> None:
        self._done = done

    def wait(self) -> None:
        for one in self._done:
            one.result(WAIT_S)


class DamagingLane(SymmetricCommStream):
    """One that damages what is received into as soon as that is allowed."""

    def __init__(self, wire: VirtualWire, comm: Any, mine: Callable[[torch.Tensor], bool]) -> None:
        super().__init__(wire, comm)
        self._damage, self._mine = wire.damage, mine

    def post(self, sends: Sequence[Outgoing], receives: Sequence[Message]) -> Pending:
        for _, x in receives:
            assert not x.numel() or self._mine(x), "what is received into is no place that peers can write to"
            self._damage(x)
        return super().post(sends, receives)


class SymmetricVirtualComm(VirtualComm):
    def __init__(self, rank: int, world: int, job: Job, shared: SharedMemory) -> None:
        super().__init__(rank, world, job, keeps_order=True)
        self._shared, self._num_heaps = shared, 0
        self._lanes: dict[str, Any] = {}

    def gather(self, mine: Any) -> list[Any]:
        self._job.board[self.rank] = mine
        self._job.meet(self._ranks)
        found = list(self._job.board)
        self._job.meet(self._ranks)
        return found

    def heap(self, num_bytes: int) -> VirtualHeap:
        assert len(set(self.gather(num_bytes))) == 1, "all ranks have as much"
        number, self._num_heaps = self._num_heaps, self._num_heaps + 1
        self._shared.heaps[number, self.rank] = torch.full((num_bytes,), DAMAGE, dtype=torch.uint8)
        self.gather(None)
        return VirtualHeap([self._shared.heaps[number, rank] for rank in range(self.world)])

    def landings(self) -> SymmetricReceiveBuffers:
        comm: Any = self
        return SymmetricReceiveBuffers(comm, self)

    def lane(self, name: str) -> Any:
        if name not in self._lanes:
            self._lanes[name] = DamagingLane(VirtualWire(self._shared, self.rank, name), self, self._is_mine)
        return self._lanes[name]

    def _is_mine(self, x: torch.Tensor) -> bool:
        heaps = (heap for (_, rank), heap in self._shared.heaps.items() if rank == self.rank)
        return any(heap.data_ptr() <= x.data_ptr() < heap.data_ptr() + heap.numel() for heap in heaps)


def on_symmetric_ranks(call: Callable[[SymmetricVirtualComm], Any], world: int) -> list[Any]:
    """call(comm) on every rank at once → results by rank."""
    job, shared = Job(world), SharedMemory()
    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(lambda rank: call(SymmetricVirtualComm(rank, world, job, shared)), range(world)))
