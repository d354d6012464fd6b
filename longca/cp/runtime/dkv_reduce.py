"""Gradients of keys on their way home: from who computed with the keys straight to who holds them.

They do not travel on with the keys, as in other rings. There each key's sum makes P hops in float32; straight home it is P − 1 in the
dtype in which kernels give their gradients, no step waits for the sum of another rank, and only keys that were computed with
move. The owner adds up in float32, so each part is rounded once, however many ranks there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from longca.cp.comm.p2p import Pending
from longca.cp.runtime.kv_exchange import first_rows, landing_names, pieces, swaps
from longca.cp.schedule.buffer_schedule import START

if TYPE_CHECKING:
    import torch

    from longca.cp.comm.buffers import ReceiveBuffers
    from longca.cp.comm.process_group import Comm
    from longca.cp.schedule.plan import Plan

LANE = "gradients"  # of its own: keys of the next step must not wait for gradients of this one


class DkvReduce:
    """The gradients of one rank of a plan. Arguments as of `KvExchange`."""

    def __init__(self, plan: Plan, rank: int, ranks: Sequence[int], comm: Comm, landings: ReceiveBuffers, row_bytes: int) -> None:
        numbers = range(plan.num_steps)
        self.sends = [plan.dkv_sends(rank, number) for number in numbers]
        self.receives = [plan.dkv_receives(rank, number) for number in numbers]
        self.first_rows = [
            first_rows(landings, self.sends[number], lambda peer, number=number: plan.dkv_receives(peer, number), rank)
            for number in numbers]
        """of each step and move that is sent: where it lands, as a row of the receiver's buffer"""
        self.swaps = [None, *swaps(plan, list(zip(self.sends, self.receives, strict=True))[1:], ranks, comm, landings)]
        """of each step, where messages are collectives"""
        self.ranks, self.landings, self.lane = ranks, landings, comm.lane(LANE)
        self.num_keys = max(sum(map(len, moves)) for moves in self.receives)
        """that come home after one step, at most"""
        for name in (*landing_names(LANE, 0), *landing_names(LANE, 1)):
            landings.reserve(name, self.num_keys * row_bytes)

    def start(self, k_LGD: torch.Tensor, v_LGD: torch.Tensor) -> DkvReduceInFlight:
        """Sums for a rank's own keys."""
        return DkvReduceInFlight(self, k_LGD, v_LGD)


class DkvReduceInFlight:
    """One call's (dk, dv): float32 sums over all ranks that see the keys.

    Two receive buffers take turns: what arrives after one step is added up after the next.
    """

    def __init__(self, homecoming: DkvReduce, k_LGD: torch.Tensor, v_LGD: torch.Tensor) -> None:
        import torch

        self._homecoming, self._dtype = homecoming, k_LGD.dtype
        self._sums = tuple(torch.zeros(x.shape, dtype=torch.float32, device=x.device) for x in (k_LGD, v_LGD))
        self._buffers = [tuple(homecoming.landings.empty(name, (homecoming.num_keys, *x.shape[1:]), x)
                               for name, x in zip(landing_names(LANE, turn), (k_LGD, v_LGD), strict=True)) for turn in range(2)]
        self._pending = (START, Pending())

    def add(self, dk: torch.Tensor, dv: torch.Tensor) -> None:
        """Of a rank's own keys, by itself; or none."""
        if not len(dk):
            return
        for total, part in zip(self._sums, (dk, dv), strict=True):
            total.add_(part)

    def post(self, number: int, dk: torch.Tensor | None, dv: torch.Tensor | None) -> None:
        """After the kernel of each step but the first, with its gradients where the rank had one: `Plan.needed_kv` keys × heads × D."""
        home = self._homecoming
        parts = tuple(x.contiguous() for x in (dk, dv) if x is not None)
        turn, swap = number % 2, home.swaps[number]
        if swap is not None:
            messages = swap.post(home.lane, parts or [x[:0] for x in self._buffers[turn]], self._buffers[turn])
            self.collect()
            self._pending = (number, messages)
            return
        spots = [home.landings.spot(name, row * part[0].numel())
                 for row in home.first_rows[number] for name, part in zip(landing_names(LANE, turn), parts, strict=True)]
        sends = [(*message, spot) for message, spot in zip(pieces(home.sends[number], parts, home.ranks), spots, strict=True)]
        receives = pieces(home.receives[number], self._buffers[turn], home.ranks)
        messages = home.lane.post(sends, receives)
        self.collect()
        self._pending = (number, messages)

    def collect(self) -> None:
        """Adds up what was to arrive after the last step that was posted."""
        number, messages = self._pending
        messages.wait()
        moves = self._homecoming.receives[number] if number >= 0 else []
        start = 0
        for move in moves:
            for total, arrived in zip(self._sums, self._buffers[number % 2], strict=True):
                total[move.start:move.end].add_(arrived[start:start + len(move)])
            start += len(move)
        self._pending = (START, Pending())

    def finish(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(dk, dv) in the dtype of the keys."""
        self.collect()
        dk, dv = (total.to(self._dtype) for total in self._sums)
        return dk, dv
