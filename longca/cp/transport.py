"""Keys on their way: what a rank needs for each step is there when the step begins, and goes on to whoever needs it next.

k and v of the same keys are two messages of one batch, straight from the tensors in which they are and into those that kernels read:
nothing is packed or copied. Shapes: n keys, G KV heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from longca.cp.channels import Pending
from longca.cp.plan import Move
from longca.cp.route import OWN, START, Hop, Route

if TYPE_CHECKING:
    import torch

    from longca.cp.comm import Comm
    from longca.cp.plan import Plan

    KeyTensors = tuple[torch.Tensor, torch.Tensor]


class Transport:
    """The keys of one rank of a plan.

    Args:
        ranks: of the job, in the order of the plan.
        rank: of the plan.
    """

    def __init__(self, plan: Plan, rank: int, ranks: Sequence[int], comm: Comm) -> None:
        self.ranks = ranks
        self.keeps_order = comm.keeps_order
        self.route = Route(plan, rank, early=self.keeps_order)
        self.seen = [_part(plan, rank, number) for number in range(plan.num_steps)]
        """of the keys that are there in a step, those that the rank computes with"""
        self.lanes = {name: comm.lane(name) for name in dict.fromkeys(hop.lane for hop in self.route.hops)}

    def start(self, k_LGD: torch.Tensor, v_LGD: torch.Tensor) -> Journey:
        """Sets out with a rank's own keys. All ranks alike, each time."""
        return Journey(self, k_LGD.contiguous(), v_LGD.contiguous())


@dataclass
class _Buffer:
    keys: KeyTensors
    written: tuple[str, Pending] = ("", Pending())  # lane, messages
    read: list[tuple[str, Pending]] = field(default_factory=list)


class Journey:
    """One call's keys."""

    def __init__(self, transport: Transport, k_LGD: torch.Tensor, v_LGD: torch.Tensor) -> None:
        self._transport, self._route = transport, transport.route
        self._buffers = {OWN: _Buffer((k_LGD, v_LGD))}
        for number, num_keys in enumerate(self._route.buffer_keys):
            self._buffers[number] = _Buffer((k_LGD.new_empty(num_keys, *k_LGD.shape[1:]), v_LGD.new_empty(num_keys, *v_LGD.shape[1:])))
        self.computed(START)

    def keys(self, number: int) -> KeyTensors:
        """(k, v) that the rank computes with in a step: `Plan.seen`. They are there, in the order of the current stream."""
        if number == 0:
            return self._buffers[OWN].keys
        hop = self._route.hops[number - 1]
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

    def _post(self, hop: Hop) -> None:
        source, target = self._buffers[hop.source], self._buffers[hop.buffer]
        if hop.sends:
            self._settle([source.written], hop.lane)
        if hop.receives:
            self._settle([target.written, *target.read], hop.lane)
            target.read = []
        sends = [(self._transport.ranks[move.peer], x[move.first - hop.source_first:move.behind - hop.source_first])
                 for move in hop.sends for x in source.keys]
        messages = self._transport.lanes[hop.lane].post(sends, pieces(hop.receives, target.keys, self._transport.ranks))
        if hop.sends:
            source.read.append((hop.lane, messages))
        if hop.receives:
            target.written = hop.lane, messages

    def _settle(self, messages: Sequence[tuple[str, Pending]], lane: str) -> None:
        """Waits for messages that the next ones on a lane would overtake."""
        for their_lane, pending in messages:
            if not self._transport.keeps_order or their_lane != lane:
                pending.wait()


def _part(plan: Plan, rank: int, number: int) -> slice:
    held, seen = plan.keys(rank, number), plan.seen(rank, number)
    first = seen[0][1] - held[0][1] if seen else 0
    return slice(first, first + sum(behind - begin for _, begin, behind in seen))


def pieces(moves: Sequence[Move], tensors: Sequence[torch.Tensor], ranks: Sequence[int]) -> list[tuple[int, torch.Tensor]]:
    """Messages with each tensor's rows for each move; the moves' rows lie one after the other."""
    found, start = [], 0
    for move in moves:
        found += [(ranks[move.peer], x[start:start + len(move)]) for x in tensors]
        start += len(move)
    return found
