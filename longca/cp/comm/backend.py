"""The communication that strategies see, and the choice of its backend: NCCL, gloo, or symmetric memory where
a trial of it succeeds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from longca.core import boot_id
from longca.cp.comm.p2p import CommStream, ReceiveBuffers, SymmetricReceiveBuffers
from longca.cp.comm.process_group import WorldGroup
from longca.cp.comm.symmetric import SymmetricCommStream
from longca.cp.comm.symmetric_cuda import LARGEST_NUMBER, CudaSignalStream, CudaSymmetricMemory

if TYPE_CHECKING:
    from datetime import timedelta

    import torch

    from longca.core import Messages

TRIAL_SECONDS = 20.0
POLL_SECONDS = 0.01
NUM_ELEMENTS = 1024


class Comm(WorldGroup):
    """All that a strategy needs of the other ranks: collectives, comm streams, and receive buffers."""

    def _enter(self, rank: int, world: int, device: torch.device, timeout: timedelta) -> None:
        super()._enter(rank, world, device, timeout)
        self.keeps_order = self.device.type == "cuda"
        """messages of a comm stream run one after the other, also where one passes on what another brings:
        the host need not wait"""
        self.messages: Messages = "nccl"
        self.messages_note = ""
        """for a reader: the outcome of asking for another backend; the same on all ranks"""
        self._streams: dict[tuple[Messages, bool, str], CommStream | SymmetricCommStream] = {}
        self._symmetric: CudaSymmetricMemory | None = None  # NCCL and gloo need none
        # reason why "symmetric" cannot be used, "" if it can; None before the trial
        self._refused: str | None = None
        self._refused_on_host: str | None = None  # the same of its signals in memory of the host

    def use(self, messages: Messages | Literal["auto"], releasable: bool = False) -> None:
        """Chooses the backend of comm streams and receive buffers asked for from now on: see
        `longca.core.schema.Messages`. "auto" and "symmetric" are that of symmetric memory where a trial of it
        succeeds, else NCCL or gloo.

        Args:
            releasable: "symmetric" is to be such that `can_release`, if a trial of that succeeds.
        """
        if self._symmetric is not None:
            self._symmetric.release()
            self._symmetric.signals_on_host = False
        self.messages = "nccl"
        self.messages_note = ""
        if messages == "nccl" or (messages == "auto" and (self.world == 1 or self.device.type != "cuda")):
            return
        if self._refused is None:
            self._refused = why_not_symmetric(self, self._memory) or ""
        if self._refused:
            self.messages_note = f"messages by NCCL or gloo: {self._refused}"
            return
        self.messages = "symmetric"
        self.messages_note = "messages by copy engines, into symmetric memory"
        if releasable:
            if self._refused_on_host is None:
                self._refused_on_host = why_not_on_host(self, self._memory) or ""
            self._memory.signals_on_host = not self._refused_on_host
            if self._refused_on_host:
                self.messages_note += f"; its signals are in memory of the GPU: {self._refused_on_host}"

    @property
    def _memory(self) -> CudaSymmetricMemory:
        if self._symmetric is None:
            self._symmetric = CudaSymmetricMemory(self)
        return self._symmetric

    @property
    def can_release(self) -> bool:
        """`abandon` lets the GPU go on whatever the host waits for. Elsewhere nothing should be sent before
        ranks agree on it."""
        return self.messages == "nccl" or self._memory.signals_on_host

    def stream(self, name: str) -> CommStream | SymmetricCommStream:
        """The comm stream of that name. All ranks make it together when they first ask for it, and keep
        it."""
        key = self.messages, self.can_release, name
        if key not in self._streams:
            symmetric = self.messages == "symmetric"
            self._streams[key] = (
                SymmetricCommStream(self._memory.signal_stream(), self)
                if symmetric
                else CommStream(self._new_group(), self)
            )
        return self._streams[key]

    def receive_buffers(self) -> ReceiveBuffers:
        """The receive buffers of one prepared strategy."""
        return (
            SymmetricReceiveBuffers(self, self._memory) if self.messages == "symmetric" else ReceiveBuffers()
        )

    @property
    def unseen_bytes(self) -> int:
        """Symmetric memory of this rank, which torch's allocator does not count."""
        return self._symmetric.held_bytes if self._symmetric is not None else 0

    def abandon(self) -> None:
        if self._symmetric is not None:
            self._symmetric.release_waits()
        super().abandon()

    def close(self) -> None:
        self._streams.clear()
        super().close()


def why_not_symmetric(group: WorldGroup, memory: CudaSymmetricMemory) -> str | None:
    """None if ranks can write into each other's memory: asked first, and then tried once. Else the first
    reason, the same on all ranks."""
    if group.world == 1:
        return "a lone rank has no peer"
    if group.device.type != "cuda":
        return "symmetric memory is that of GPUs"
    places = [(machine, index) for machine, index in group.gather([boot_id(), group.device.index])]
    if len({machine for machine, _ in places}) > 1:
        return "the ranks are on several machines"
    if len(set(places)) < group.world:
        return "ranks call their GPUs by the same number, as where each sees its own alone"
    for check in (_check_libraries, _check_peer_access, _check_message):
        reason = _agreed(group, check, memory)
        if reason is not None:
            return reason
    return None


def why_not_on_host(group: WorldGroup, memory: CudaSymmetricMemory) -> str | None:
    """None if signals in memory of the host work where those in memory of the GPU do: tried once. Else the
    first reason."""
    memory.signals_on_host = True
    try:
        return next(
            filter(None, (_agreed(group, check, memory) for check in (_check_message, _check_release))), None
        )
    finally:
        memory.signals_on_host = False


def _agreed(
    group: WorldGroup,
    check: Callable[[WorldGroup, CudaSymmetricMemory], str | None],
    memory: CudaSymmetricMemory,
) -> str | None:
    """The first reason that the check finds on any rank; None if it finds none."""
    try:
        mine = check(group, memory)
    except Exception as error:  # torch and the driver say no in many ways
        mine = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return next(
        (f"rank {rank}: {reason}" for rank, reason in enumerate(group.gather(mine)) if reason is not None),
        None,
    )


def _check_libraries(group: WorldGroup, memory: CudaSymmetricMemory) -> str | None:
    from torch.distributed import _symmetric_memory as symmetric

    missing = [
        name
        for name in ("cuStreamWaitValue32_v2", "cuStreamWriteValue32_v2")
        if not hasattr(memory.driver, name)
    ]
    missing += [] if hasattr(symmetric, "rendezvous") else ["torch.distributed._symmetric_memory.rendezvous"]
    return f"{missing[0]} is missing" if missing else None


def _check_peer_access(group: WorldGroup, memory: CudaSymmetricMemory) -> str | None:
    import torch

    here = group.device.index or 0
    others = [index for _, index in group.gather([None, here]) if index != here]
    refused = [other for other in others if not torch.cuda.can_device_access_peer(here, other)]
    return f"GPU {here} cannot reach the memory of GPU {refused[0]}" if refused else None


def _check_message(group: WorldGroup, memory: CudaSymmetricMemory) -> str | None:
    """Sends a message to the next rank. The host waits for it, but not for ever."""
    import torch

    stream = memory.signal_stream()
    buffer = memory.allocate(NUM_ELEMENTS * torch.int32.itemsize)
    after = (group.rank + 1) % group.world
    before = (group.rank - 1) % group.world
    message = torch.full((NUM_ELEMENTS,), group.rank, dtype=torch.int32, device=group.device)
    stream.wait_for_current()
    stream.send_signal(before, "ready", 1)
    stream.wait_signal(after, "ready", 1)
    stream.write(buffer.view(after, 0, message.shape, message.dtype), message)
    stream.send_signal(after, "full", 1)
    stream.wait_signal(before, "full", 1)
    if not _is_done_in_time(stream):
        stream.fill_signals(LARGEST_NUMBER)  # else the stream would wait on
        return f"a message has not arrived in {TRIAL_SECONDS:.0f} s"
    arrived = buffer.view(group.rank, 0, message.shape, message.dtype)
    wrong = not bool((arrived == before).all())
    return "a message has arrived damaged" if wrong else None


def _check_release(group: WorldGroup, memory: CudaSymmetricMemory) -> str | None:
    """Lets a stream wait for a signal that no rank sends, and releases it."""
    stream = memory.signal_stream()
    stream.wait_signal((group.rank + 1) % group.world, "full", 1)
    done = stream.record_event()
    time.sleep(POLL_SECONDS)
    if done.query():
        return "a stream does not wait for a signal"
    stream.release_waits()
    return None if _is_done_in_time(stream) else f"a stream is not released in {TRIAL_SECONDS:.0f} s"


def _is_done_in_time(stream: CudaSignalStream) -> bool:
    done = stream.record_event()
    deadline = time.monotonic() + TRIAL_SECONDS
    while not done.query():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True
