"""Messages that a rank writes directly into the memory of another by copy engines, without using
multiprocessors.

Each rank executes the steps of its batches in order on one stream, and no host waits. A ready/full handshake
of two signals guards each message. Signals are increasing counters, so they need no reset, and a late reader
misses nothing:

    receiver                              sender
    signal "ready" n  ──────────────────▶ wait for "ready" n         the receive buffer is free
                      ◀────────────────── write the messages
    wait for "full" n ◀────────────────── signal "full" n            all messages of the batch are there

n counts the batches between these two ranks. The first steps of a batch do not wait, its sends wait for the
first steps of the same batch on other ranks, and its last steps wait for those sends. So there is no deadlock
unless batches wait for each other in a cycle. This also holds if a driver merges several streams of a rank
into one queue, provided that all ranks post in the same order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from longca.cp.comm.p2p import Pending

if TYPE_CHECKING:
    import torch

    from longca.cp.comm.p2p import Message, Outgoing
    from longca.cp.comm.process_group import WorldGroup

Signal = Literal["ready", "full"]
"""ready: from a receiver to a sender; full: from a sender to a receiver"""


@dataclass(frozen=True)
class SendSignal:
    peer: int
    signal: Signal
    number: int


@dataclass(frozen=True)
class WaitSignal:
    """Waits until the peer's signal has reached this number."""

    peer: int
    signal: Signal
    number: int


@dataclass(frozen=True)
class WriteMessages:
    """Writes all messages of the batch for the peer."""

    peer: int


HandshakeStep = SendSignal | WaitSignal | WriteMessages


class SignalHandshake:
    """The ready/full handshake of one rank on one comm stream. Batches with a peer correspond one-to-one to
    the peer's batches with this rank."""

    def __init__(self, rank: int, world: int) -> None:
        self._rank = rank
        self._world = world
        self._sent: Counter[int] = Counter()
        self._received: Counter[int] = Counter()

    def batch(self, receivers: Iterable[int], senders: Iterable[int]) -> list[HandshakeStep]:
        """The steps of a batch with messages to and from these peers. Called once for each batch, in
        order."""
        receivers = sorted(set(receivers), key=self._distance)  # so that ranks write to different peers first
        senders = sorted(set(senders))
        self._sent.update(receivers)
        self._received.update(senders)
        steps: list[HandshakeStep] = [SendSignal(peer, "ready", self._received[peer]) for peer in senders]
        for peer in receivers:
            number = self._sent[peer]
            steps += [
                WaitSignal(peer, "ready", number),
                WriteMessages(peer),
                SendSignal(peer, "full", number),
            ]
        return steps + [WaitSignal(peer, "full", self._received[peer]) for peer in senders]

    def _distance(self, peer: int) -> int:
        return (peer - self._rank) % self._world


class SignalStream(Protocol):
    """The GPU stream of one comm stream, with the signals of peers to this rank. Operations run in order, and
    the host never waits."""

    def wait_for_current(self) -> None:
        """Makes later work wait for the present work of the current stream."""
        ...

    def send_signal(self, peer: int, signal: Signal, number: int) -> None: ...

    def wait_signal(self, peer: int, signal: Signal, number: int) -> None: ...

    def write(self, target: torch.Tensor, x: torch.Tensor) -> None: ...

    def record_event(self) -> Any:
        """An event after all work so far: its `wait` makes the current stream wait for it."""
        ...


class SymmetricCommStream:
    """Comm stream over symmetric memory. Tensors received into come from `ReceiveBuffers.empty`, and senders
    name their offset."""

    def __init__(self, stream: SignalStream, group: WorldGroup) -> None:
        self._stream = stream
        self._group = group
        self._handshake = SignalHandshake(group.rank, group.world)

    def post(self, sends: Sequence[Outgoing], receives: Sequence[Message]) -> Pending:
        """Like `CommStream.post`. In addition, batches of two ranks must correspond one-to-one."""
        sends = [(peer, x, offset) for peer, x, offset in sends if x.numel()]
        receives = [(peer, x) for peer, x in receives if x.numel()]
        if not sends and not receives:
            return Pending()
        self._stream.wait_for_current()
        for step in self._handshake.batch([peer for peer, *_ in sends], [peer for peer, _ in receives]):
            if isinstance(step, SendSignal):
                self._stream.send_signal(step.peer, step.signal, step.number)
            elif isinstance(step, WaitSignal):
                self._stream.wait_signal(step.peer, step.signal, step.number)
            else:
                for peer, x, offset in sends:
                    if peer == step.peer:
                        assert offset is not None, "of `SymmetricReceiveBuffers`"
                        self._stream.write(offset.at(peer, x), x)
        self._group.moved_bytes += sum(x.nbytes for _, x, _ in sends)
        return Pending([self._stream.record_event()], [x for _, x, *_ in (*sends, *receives)])
