"""Keys on their way: what a rank needs for each step is there when the step begins, and goes on to whoever needs it next.

In a ring, k and v of the same keys are two messages of one batch, straight from the tensors in which they are and into those that kernels
read: nothing is packed or copied. In a gather, what goes to others is packed, once, and k and v are a collective each, however many ranges
of keys move; a rank's own are copied where a kernel reads them with others. Shapes: n keys, G KV heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

from longca.cp.comm.p2p import Pending
from longca.cp.runtime.swap import AllToAll
from longca.cp.schedule.buffer_schedule import OWN, START, BufferSchedule, CommStep
from longca.cp.schedule.plan import Transfer

if TYPE_CHECKING:
    import torch

    from longca.cp.comm.buffers import ReceiveBuffers
    from longca.cp.comm.p2p import Message
    from longca.cp.comm.process_group import Comm
    from longca.cp.schedule.plan import Plan

    KeyTensors = tuple[torch.Tensor, torch.Tensor]


class KvExchange:
    """The keys of one rank of a plan.

    Args:
        ranks: of the job, in the order of the plan.
        rank: of the plan.
    """

    def __init__(self, plan: Plan, rank: int, ranks: Sequence[int], comm: Comm, landings: ReceiveBuffers, row_bytes: int) -> None:
        """
        Args:
            row_bytes: of one key, without its value.
        """
        self.ranks, self.landings = ranks, landings
        self.keeps_order = comm.keeps_order
        self.route = BufferSchedule(plan, rank, early=self.keeps_order)
        self.seen = [_part(plan, rank, number) for number in range(plan.num_steps)]
        """of the keys that are there in a step, those that the rank computes with"""
        self.first_rows = [first_rows(landings, hop.sends, lambda peer, number=hop.number: plan.receives(peer, number), rank,
                                      lambda peer, number=hop.number: plan.num_own_kv(peer, number)) for hop in self.route.comm_steps]
        """of each hop and move that is sent: where it lands, as a row of the receiver's buffer"""
        self.swaps = swaps(plan, [(hop.sends, hop.receives) for hop in self.route.comm_steps], ranks, comm, landings)
        """of each hop, where messages are collectives"""
        self.lanes = {name: comm.lane(name) for name in dict.fromkeys(hop.stream for hop in self.route.comm_steps)}
        for number, num_keys in enumerate(self.route.buffer_keys):
            for name in landing_names("keys", number):
                landings.reserve(name, num_keys * row_bytes)

    def start(self, k_LGD: torch.Tensor, v_LGD: torch.Tensor) -> KvExchangeInFlight:
        """Sets out with a rank's own keys. All ranks alike, each time."""
        return KvExchangeInFlight(self, k_LGD.contiguous(), v_LGD.contiguous())


@dataclass
class _Buffer:
    keys: KeyTensors
    written: tuple[str, Pending] = ("", Pending())  # lane, messages
    read: list[tuple[str, Pending]] = field(default_factory=list)


class KvExchangeInFlight:
    """One call's keys."""

    def __init__(self, transport: KvExchange, k_LGD: torch.Tensor, v_LGD: torch.Tensor) -> None:
        self._transport, self._route = transport, transport.route
        self._buffers = {OWN: _Buffer((k_LGD, v_LGD))}
        for number, num_keys in enumerate(self._route.buffer_keys):
            k, v = (transport.landings.empty(name, (num_keys, *x.shape[1:]), x)
                    for name, x in zip(landing_names("keys", number), (k_LGD, v_LGD), strict=True))
            self._buffers[number] = _Buffer((k, v))
        self.computed(START)

    def keys(self, number: int) -> KeyTensors:
        """(k, v) that the rank computes with in a step: `Plan.needed_kv`. They are there, in the order of the current stream."""
        if number == 0:
            return self._buffers[OWN].keys
        hop = self._route.comm_steps[number - 1]
        if hop.num_own_kv and not hop.receives:
            return self._buffers[OWN].keys
        buffer = self._buffers[hop.buffer]
        buffer.written[1].wait()
        k, v = (x[self._transport.seen[number]] for x in buffer.keys)
        return k, v

    def computed(self, number: int) -> None:
        """To be called after the kernel of each step, whether or not the rank had one: posts what may set out now."""
        for hop in self._route.posted_after(number):
            self._post(hop)

    def finish(self) -> None:
        """Until everything of this rank has arrived, here and elsewhere."""
        for buffer in self._buffers.values():
            buffer.written[1].wait()
            for _, messages in buffer.read:
                messages.wait()

    def _post(self, hop: CommStep) -> None:
        source, target = self._buffers[hop.send_buffer], self._buffers[hop.buffer]
        if hop.sends:
            self._settle([source.written], hop.stream)
        if hop.receives:
            self._settle([target.written, *target.read], hop.stream)
            target.read = []
        transport, first_rows, swap = self._transport, self._transport.first_rows[hop.number - 1], self._transport.swaps[hop.number - 1]
        lane, received = transport.lanes[hop.stream], [x[hop.num_own_kv:] for x in target.keys]
        if swap is not None:
            messages = swap.post(lane, [_rows_of(x, hop.sends) for x in source.keys], received)
            self._posted(hop, messages)
            return
        sends = [(transport.ranks[move.peer], x[move.start - hop.send_start:move.end - hop.send_start],
                  transport.landings.spot(name, row * x[0].numel()))
                 for move, row in zip(hop.sends, first_rows, strict=True)
                 for name, x in zip(landing_names("keys", hop.buffer), source.keys, strict=True)]
        self._posted(hop, lane.post(sends, pieces(hop.receives, received, transport.ranks)))

    def _posted(self, hop: CommStep, messages: Pending) -> None:
        source, target = self._buffers[hop.send_buffer], self._buffers[hop.buffer]
        if hop.num_own_kv and hop.receives:
            for x, own in zip(target.keys, self._buffers[OWN].keys, strict=True):
                x[:hop.num_own_kv].copy_(own)
        if hop.sends or not hop.receives:
            source.read.append((hop.stream, messages))
        if hop.receives:
            target.written = hop.stream, messages

    def _settle(self, messages: Sequence[tuple[str, Pending]], lane: str) -> None:
        """Waits for messages that the next ones on a lane would overtake."""
        for their_lane, pending in messages:
            if not self._transport.keeps_order or their_lane != lane:
                pending.wait()


def _part(plan: Plan, rank: int, number: int) -> slice:
    held, seen = plan.held_kv(rank, number), plan.needed_kv(rank, number)
    first = seen[0][1] - held[0][1] if seen else 0
    return slice(first, first + sum(behind - begin for _, begin, behind in seen))


def swaps(plan: Plan, moves: Sequence[tuple[Sequence[Transfer], Sequence[Transfer]]], ranks: Sequence[int], comm: Comm,
          landings: ReceiveBuffers) -> list[AllToAll | None]:
    """Of each step from the second on, of which (sends, receives) are given; none where messages go one by one."""
    if not plan.is_all_to_all or landings.fixed:
        return [None] * len(moves)
    return [AllToAll(sends, receives, ranks, comm.world, is_empty=not plan.received_kv[:, number].any())
            for number, (sends, receives) in enumerate(moves, 1)]


def _rows_of(x: torch.Tensor, moves: Sequence[Transfer]) -> torch.Tensor:
    import torch

    return torch.cat([x[move.start:move.end] for move in moves]) if moves else x[:0]


def landing_names(what: str, number: int) -> tuple[str, str]:
    """Of a buffer: of keys and of values."""
    return f"{what} {number}: k", f"{what} {number}: v"


def first_rows(landings: ReceiveBuffers, sends: Sequence[Transfer], receives_of: Callable[[int], Sequence[Transfer]], rank: int,
               begin_of: Callable[[int], int] = lambda _: 0) -> list[int]:
    """For each move that a rank sends, its first row where the receiver's moves lie one after the other; 0 where it need not be known.

    Args:
        receives_of: the moves of a rank in the same step; those of two ranks come in the same order on both sides.
        begin_of: the row at which the first of them begins.
    """
    if not landings.fixed:  # over many ranks it takes a second to find out
        return [0] * len(sends)
    rows: dict[int, list[int]] = {}
    for peer in dict.fromkeys(move.peer for move in sends):
        moves = receives_of(peer)
        starts = accumulate(map(len, moves), initial=begin_of(peer))
        rows[peer] = [start for start, move in zip(starts, moves, strict=False) if move.peer == rank]
    return [rows[move.peer].pop(0) for move in sends]


def pieces(moves: Sequence[Transfer], tensors: Sequence[torch.Tensor], ranks: Sequence[int]) -> list[Message]:
    """Messages with each tensor's rows for each move; the moves' rows lie one after the other."""
    found, start = [], 0
    for move in moves:
        found += [(ranks[move.peer], x[start:start + len(move)]) for x in tensors]
        start += len(move)
    return found
