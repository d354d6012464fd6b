"""All ranks of a job as threads of one process, so that worlds larger than the machine can be tried."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from longca.cp.comm.p2p import ReceiveBuffers

WAIT_S = 60.0
Message = tuple[int, torch.Tensor]
Outgoing = tuple[int, torch.Tensor, Any]


class Job:
    """The state that the ranks of a job share. One rank computes at a time: threads that all compute pass the
    interpreter a million times around."""

    def __init__(self, world: int) -> None:
        self.turn = threading.Lock()
        self.holder: int | None = None
        self.board: list[Any] = [None] * world
        self.barriers: dict[tuple[int, ...], threading.Barrier] = {}
        self.mail: dict[tuple[Any, ...], queue.Queue[torch.Tensor]] = defaultdict(queue.Queue)
        self.lock = threading.Lock()

    def meet(self, ranks: tuple[int, ...]) -> None:
        with self.lock:
            barrier = self.barriers.setdefault(ranks, threading.Barrier(len(ranks), timeout=WAIT_S))
        with self.paused():
            barrier.wait()

    @contextmanager
    def computing(self) -> Iterator[None]:
        """This thread's turn."""
        with self.turn:
            self.holder = threading.get_ident()
            try:
                yield
            finally:
                self.holder = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Others' turn while this thread waits for them. A thread that has no turn, as that of a stream, just
        waits."""
        if self.holder != threading.get_ident():
            yield
            return
        self.holder = None
        self.turn.release()
        try:
            yield
        finally:
            self.turn.acquire()
            self.holder = threading.get_ident()

    def box(self, *key: Any) -> queue.Queue[torch.Tensor]:
        with self.lock:
            return self.mail[key]


class VirtualComm:
    """The methods of `longca.cp.comm.backend.Comm` and of its comm streams that strategies and the harness
    use."""

    messages_note = ""

    def __init__(
        self,
        rank: int,
        world: int,
        job: Job,
        ranks: Sequence[int] | None = None,
        whole: VirtualComm | None = None,
        keeps_order: bool = False,
    ) -> None:
        self.device = torch.device("cpu")
        self.moved_bytes = 0
        self.keeps_order = keeps_order
        self._job = job
        self._ranks = tuple(ranks or range(world))
        self._whole = whole or self
        self.rank, self.world = self._ranks.index(rank), len(self._ranks)

    def all_to_all(self, send: torch.Tensor, send_sizes: list[int], recv_sizes: list[int]) -> torch.Tensor:
        parts = send.split(send_sizes)
        me = self._ranks[self.rank]
        self._job.board[me] = parts
        self._job.meet(self._ranks)
        received = [self._job.board[rank][self.rank].clone() for rank in self._ranks]
        self._job.meet(self._ranks)
        assert [len(part) for part in received] == recv_sizes
        self._whole.moved_bytes += sum(
            part.nbytes for number, part in enumerate(parts) if number != self.rank
        )
        return torch.cat(received)

    def receive_buffers(self) -> ReceiveBuffers:
        return ReceiveBuffers()

    def stream(self, name: str) -> VirtualCommStream:
        return (OrderedCommStream if self.keeps_order else VirtualCommStream)(self, name, self._job)


class VirtualCommStream:
    """Messages that are copied when they are posted, and put where they belong when they are waited for."""

    def __init__(self, comm: VirtualComm, name: str, job: Job) -> None:
        self._comm = comm
        self._name = name
        self._job = job

    def post(self, sends: Sequence[Outgoing], receives: Sequence[Message]) -> VirtualMessages | VirtualEvent:
        me = self._comm.rank
        for peer, x, _ in sends:
            assert x.is_contiguous()
            assert peer != me
            with _disable_current_modes():  # what is in the mail is on no rank
                self._job.box(self._name, me, peer).put(x.clone())
            self._comm.moved_bytes += x.nbytes
        return VirtualMessages(self._job, [(self._job.box(self._name, peer, me), x) for peer, x in receives])

    def all_to_all(
        self,
        received: Sequence[torch.Tensor],
        sent: Sequence[torch.Tensor],
        receive_sizes: Sequence[Sequence[int]],
        send_sizes: Sequence[Sequence[int]],
    ) -> VirtualMessages | VirtualEvent:
        me = self._comm.rank
        sends = []
        receives = []
        for target, source, arriving, leaving in zip(received, sent, receive_sizes, send_sizes, strict=True):
            assert target.is_contiguous() and source.is_contiguous()
            parts = source.view(-1).split(list(leaving))
            places = target.view(-1).split(list(arriving))
            places[me].copy_(parts[me])
            sends += [(peer, x, None) for peer, x in enumerate(parts) if peer != me and len(x)]
            receives += [(peer, x) for peer, x in enumerate(places) if peer != me and len(x)]
        return self.post(sends, receives)


class OrderedCommStream(VirtualCommStream):
    """As a GPU's: batches follow each other on a stream, which is a thread here; what is sent is read when
    its turn comes."""

    def __init__(self, comm: VirtualComm, name: str, job: Job) -> None:
        super().__init__(comm, name, job)
        self._stream = ThreadPoolExecutor(1)
        self._pause = random.Random(f"{name} {comm.rank}")

    def post(self, sends: Sequence[Outgoing], receives: Sequence[Message]) -> VirtualEvent:
        return VirtualEvent(self._job, self._stream.submit(self._run, sends, receives))

    def _run(self, sends: Sequence[Outgoing], receives: Sequence[Message]) -> None:
        time.sleep(self._pause.random() * 2e-3)
        super().post(sends, receives).wait()


class VirtualEvent:
    def __init__(self, job: Job, done: Future[None]) -> None:
        self._job = job
        self._done = done

    def wait(self) -> None:
        with self._job.paused():
            self._done.result(WAIT_S)


class VirtualMessages:
    def __init__(self, job: Job, receives: list[tuple[queue.Queue[torch.Tensor], torch.Tensor]]) -> None:
        self._job = job
        self._receives = receives
        for _, x in receives:
            x.fill_(torch.nan)  # who reads it before `wait` sees that

    def wait(self) -> None:
        for box, x in self._receives:
            with self._job.paused():
                message = box.get(timeout=WAIT_S)
            assert message.shape == x.shape
            x.copy_(message)
        self._receives = []


def on_virtual_ranks(call: Callable[[VirtualComm], Any], world: int, keeps_order: bool = False) -> list[Any]:
    """call(comm) on every rank at once → results by rank."""
    job = Job(world)

    def on_rank(rank: int) -> Any:
        with job.computing():
            return call(VirtualComm(rank, world, job, keeps_order=keeps_order))

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(on_rank, range(world)))
