"""Exchange of keys and values: before each step a rank receives the keys of the step, and forwards the keys
that others need next.

In a ring, k and v of the same keys are two messages of one batch, sent from their own storage directly into
the receiver's kernel inputs (zero-copy). In a gather, sent rows are packed once, and k and v are one
collective each for any number of key ranges; a rank's own keys are copied if a kernel reads them together
with others.

`longca.cp.schedule.plan` shows the times and buffers of a ring's transfers.

Shapes: n keys, G KV heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from longca.cp.comm.p2p import Pending
from longca.cp.schedule.plan import OWN, START, BufferSchedule, CommStep

if TYPE_CHECKING:
    import torch

    from longca.cp.comm.backend import Comm
    from longca.cp.comm.p2p import CommStream, Message, ReceiveBuffers
    from longca.cp.schedule.plan import Plan, Transfer

    KeyTensors = tuple[torch.Tensor, torch.Tensor]


class KvExchange:
    """The exchanges of one rank of a plan.

    Args:
        ranks: of the job, in the order of the plan.
        rank: of the plan.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        ranks: Sequence[int],
        comm: Comm,
        receive_buffers: ReceiveBuffers,
        row_bytes: int,
    ) -> None:
        """
        Args:
            row_bytes: of one key, without its value.
        """
        self.ranks = ranks
        self.receive_buffers = receive_buffers
        self.keeps_order = comm.keeps_order
        self.schedule = BufferSchedule(plan, rank, early=self.keeps_order)
        steps = self.schedule.comm_steps
        self.needed_rows = [_needed_rows(plan, rank, number) for number in range(plan.num_steps)]
        """for each step, the rows of its buffer that the rank uses"""
        self.target_rows = [
            target_rows(
                receive_buffers,
                step.sends,
                lambda peer, number=step.number: plan.receives(peer, number),
                rank,
                lambda peer, number=step.number: plan.num_own_kv(peer, number),
            )
            for step in steps
        ]
        """for each comm step and sent transfer, its first row in the receiver's buffer"""
        self.all_to_alls = all_to_alls(
            plan, [(step.sends, step.receives) for step in steps], ranks, comm, receive_buffers
        )
        """for each comm step, its collective; None for point-to-point messages"""
        self.streams = {name: comm.stream(name) for name in dict.fromkeys(step.stream for step in steps)}
        for buffer, num_keys in enumerate(self.schedule.buffer_keys):
            for name in buffer_names("keys", buffer):
                receive_buffers.reserve(name, num_keys * row_bytes)

    def start(self, k_LGD: torch.Tensor, v_LGD: torch.Tensor) -> KvExchangeInFlight:
        """Begins an exchange with a rank's own keys. A collective call."""
        return KvExchangeInFlight(self, k_LGD.contiguous(), v_LGD.contiguous())


@dataclass
class _Buffer:
    keys: KeyTensors
    written: tuple[str, Pending] = ("", Pending())  # comm stream and messages that write to it
    # comm streams and messages that read from it
    read: list[tuple[str, Pending]] = field(default_factory=list)


class KvExchangeInFlight:
    """The exchange of one call."""

    def __init__(self, exchange: KvExchange, k_LGD: torch.Tensor, v_LGD: torch.Tensor) -> None:
        self._exchange = exchange
        self._schedule = exchange.schedule
        self._buffers = {OWN: _Buffer((k_LGD, v_LGD))}
        for number, num_keys in enumerate(self._schedule.buffer_keys):
            k, v = (
                exchange.receive_buffers.empty(name, (num_keys, *x.shape[1:]), x)
                for name, x in zip(buffer_names("keys", number), (k_LGD, v_LGD), strict=True)
            )
            self._buffers[number] = _Buffer((k, v))
        self.post_after(START)

    def wait_keys(self, number: int) -> KeyTensors:
        """(k, v) of the rank's step: `Plan.needed_kv`, available in the order of the current stream."""
        if number == 0:
            return self._buffers[OWN].keys
        step = self._schedule.comm_steps[number - 1]
        if step.num_own_kv and not step.receives:
            return self._buffers[OWN].keys
        buffer = self._buffers[step.buffer]
        buffer.written[1].wait()
        k, v = (x[self._exchange.needed_rows[number]] for x in buffer.keys)
        return k, v

    def post_after(self, number: int) -> None:
        """Posts the sends and receives that are due after the kernel of a step. Called for each step, even
        without a kernel."""
        for step in self._schedule.posted_after(number):
            self._post(step)

    def finish(self) -> None:
        """Waits for all sends and receives of this rank."""
        for buffer in self._buffers.values():
            buffer.written[1].wait()
            for _, messages in buffer.read:
                messages.wait()

    def _post(self, step: CommStep) -> None:
        source = self._buffers[step.send_buffer]
        target = self._buffers[step.buffer]
        if step.sends:
            self._wait_unless_ordered([source.written], step.stream)
        if step.receives:
            self._wait_unless_ordered([target.written, *target.read], step.stream)
            target.read = []
        exchange = self._exchange
        index = step.number - 1
        stream = exchange.streams[step.stream]
        received = [x[step.num_own_kv :] for x in target.keys]
        all_to_all = exchange.all_to_alls[index]
        if all_to_all is not None:
            messages = all_to_all.post(
                stream,  # pyright: ignore[reportArgumentType] - symmetric memory has no collectives here
                [_packed(x, step.sends) for x in source.keys],
                received,
            )
            self._remember(step, messages)
            return
        sends = [
            (
                exchange.ranks[transfer.peer],
                x[transfer.start - step.send_start : transfer.end - step.send_start],
                exchange.receive_buffers.offset(name, row * x[0].numel()),
            )
            for transfer, row in zip(step.sends, exchange.target_rows[index], strict=True)
            for name, x in zip(buffer_names("keys", step.buffer), source.keys, strict=True)
        ]
        self._remember(step, stream.post(sends, row_messages(step.receives, received, exchange.ranks)))

    def _remember(self, step: CommStep, messages: Pending) -> None:
        """Records the buffers that messages read and write, and copies own keys in front of received ones if
        a kernel reads both."""
        source = self._buffers[step.send_buffer]
        target = self._buffers[step.buffer]
        if step.num_own_kv and step.receives:
            for x, own in zip(target.keys, self._buffers[OWN].keys, strict=True):
                x[: step.num_own_kv].copy_(own)
        if step.sends or not step.receives:
            source.read.append((step.stream, messages))
        if step.receives:
            target.written = step.stream, messages

    def _wait_unless_ordered(self, messages: Sequence[tuple[str, Pending]], name: str) -> None:
        """Waits for messages that later ones on the comm stream `name` could overtake."""
        for stream_name, pending in messages:
            if not self._exchange.keeps_order or stream_name != name:
                pending.wait()


class AllToAll:
    """The transfers of one step among all ranks as collectives, one for each tensor, for any number of key
    ranges.

    All ranks create and post it for the same step.

    Args:
        sends, receives: transfers of this rank, in the order of peers.
        ranks: ranks of the job, in the order of the plan.
        world: number of ranks of the job.
        is_empty: True if there are no transfers between any two ranks.
    """

    def __init__(
        self,
        sends: Sequence[Transfer],
        receives: Sequence[Transfer],
        ranks: Sequence[int],
        world: int,
        *,
        is_empty: bool,
    ) -> None:
        self._sent, self._received = (
            _rows_by_rank(transfers, ranks, world) for transfers in (sends, receives)
        )
        self._num_received = sum(self._received)
        self._is_empty = is_empty
        assert all(
            first.peer <= second.peer
            for transfers in (sends, receives)
            for first, second in pairwise(transfers)
        )
        assert list(ranks) == sorted(ranks)

    def post(
        self, stream: CommStream, sent: Sequence[torch.Tensor], received: Sequence[torch.Tensor]
    ) -> Pending:
        """
        Args:
            sent: the concatenated rows of all transfers, contiguous.
            received: destination with at least as many rows as are received, contiguous.
        """
        if self._is_empty:
            return Pending()
        sizes = [
            [[rows * x.shape[1:].numel() for rows in by_rank] for x in sent]
            for by_rank in (self._received, self._sent)
        ]
        return stream.all_to_all([x[: self._num_received] for x in received], sent, *sizes)


def all_to_alls(
    plan: Plan,
    transfers: Sequence[tuple[Sequence[Transfer], Sequence[Transfer]]],
    ranks: Sequence[int],
    comm: Comm,
    receive_buffers: ReceiveBuffers,
) -> list[AllToAll | None]:
    """The collective of each step from the second on, for the given (sends, receives); None for
    point-to-point messages."""
    if not plan.is_all_to_all or receive_buffers.fixed:
        return [None] * len(transfers)
    return [
        AllToAll(sends, receives, ranks, comm.world, is_empty=not plan.received_kv[:, number].any())
        for number, (sends, receives) in enumerate(transfers, 1)
    ]


def buffer_names(content: str, number: int) -> tuple[str, str]:
    """The names of a receive buffer: for keys and for values."""
    return f"{content} {number}: k", f"{content} {number}: v"


def target_rows(
    receive_buffers: ReceiveBuffers,
    sends: Sequence[Transfer],
    receives_of: Callable[[int], Sequence[Transfer]],
    rank: int,
    start_of: Callable[[int], int] = lambda _: 0,
) -> list[int]:
    """The first row of each sent transfer in the receiver's buffer; 0 if senders do not need it.

    A receiver's transfers are concatenated.

    Args:
        receives_of: the transfers of a rank in the same step; those between two ranks have the same order on
            both sides.
        start_of: the row at which the first of them starts.
    """
    if not receive_buffers.fixed:  # with many ranks the computation takes a second
        return [0] * len(sends)
    rows: dict[int, list[int]] = {}
    for peer in dict.fromkeys(transfer.peer for transfer in sends):
        transfers = receives_of(peer)
        starts = accumulate(map(len, transfers), initial=start_of(peer))
        rows[peer] = [
            start for start, transfer in zip(starts, transfers, strict=False) if transfer.peer == rank
        ]
    return [rows[transfer.peer].pop(0) for transfer in sends]


def row_messages(
    transfers: Sequence[Transfer], tensors: Sequence[torch.Tensor], ranks: Sequence[int]
) -> list[Message]:
    """Messages with each tensor's rows for each transfer; the rows of transfers are concatenated."""
    messages = []
    start = 0
    for transfer in transfers:
        messages += [(ranks[transfer.peer], x[start : start + len(transfer)]) for x in tensors]
        start += len(transfer)
    return messages


def _needed_rows(plan: Plan, rank: int, number: int) -> slice:
    held = plan.held_kv(rank, number)
    needed = plan.needed_kv(rank, number)
    start = needed[0][1] - held[0][1] if needed else 0
    return slice(start, start + sum(end - first for _, first, end in needed))


def _packed(x: torch.Tensor, transfers: Sequence[Transfer]) -> torch.Tensor:
    import torch

    return torch.cat([x[transfer.start : transfer.end] for transfer in transfers]) if transfers else x[:0]


def _rows_by_rank(transfers: Sequence[Transfer], ranks: Sequence[int], world: int) -> list[int]:
    """Number of rows sent to, or received from, each rank of the job."""
    sizes = [0] * world
    for transfer in transfers:
        sizes[ranks[transfer.peer]] += len(transfer)
    return sizes
