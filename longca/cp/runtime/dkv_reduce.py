"""Reduction of dk and dv: ranks send gradients of keys directly to the owner of the keys.

In most other rings, gradients are sent along with the keys: each key's sum makes P hops in float32. Sent
directly they make P − 1 hops, in the dtype of the kernels' gradients. No step waits for a sum of another
rank, and only gradients of used keys are sent. The owner accumulates in float32, so each part is rounded once
for any number of ranks.

Two receive buffers alternate by the parity of the step; gradients received after one step are added after the
next:

    after the kernel of step    posted                          added to the sums
    n                           gradients of n, buffer n % 2    gradients of n − 1
    n + 1                       gradients of n + 1, the other   gradients of n
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from longca.cp.comm.p2p import Pending
from longca.cp.runtime.kv_exchange import all_to_alls, buffer_names, row_messages, target_rows
from longca.cp.schedule.plan import START

if TYPE_CHECKING:
    import torch

    from longca.cp.comm.backend import Comm
    from longca.cp.comm.p2p import ReceiveBuffers
    from longca.cp.schedule.plan import Plan

STREAM = "gradients"  # a separate stream: keys of the next step must not wait for gradients of this one


class DkvReduce:
    """The reductions of one rank of a plan. Arguments as in `KvExchange`."""

    def __init__(
        self,
        plan: Plan,
        rank: int,
        ranks: Sequence[int],
        comm: Comm,
        receive_buffers: ReceiveBuffers,
        row_bytes: int,
    ) -> None:
        numbers = range(plan.num_steps)
        self.sends = [plan.dkv_sends(rank, number) for number in numbers]
        self.receives = [plan.dkv_receives(rank, number) for number in numbers]
        self.target_rows = [
            target_rows(
                receive_buffers,
                self.sends[number],
                lambda peer, number=number: plan.dkv_receives(peer, number),
                rank,
            )
            for number in numbers
        ]
        """for each step and sent transfer, its first row in the receiver's buffer"""
        self.all_to_alls = [
            None,
            *all_to_alls(
                plan, list(zip(self.sends, self.receives, strict=True))[1:], ranks, comm, receive_buffers
            ),
        ]
        """for each step, its collective; None for point-to-point messages"""
        self.ranks = ranks
        self.receive_buffers = receive_buffers
        self.stream = comm.stream(STREAM)
        self.num_keys = max(sum(map(len, transfers)) for transfers in self.receives)
        """the largest number of keys whose gradients are received after one step"""
        for name in (*buffer_names(STREAM, 0), *buffer_names(STREAM, 1)):
            receive_buffers.reserve(name, self.num_keys * row_bytes)

    def start(self, k_LGD: torch.Tensor, v_LGD: torch.Tensor) -> DkvReduceInFlight:
        """Initialises the sums for a rank's own keys."""
        return DkvReduceInFlight(self, k_LGD, v_LGD)


class DkvReduceInFlight:
    """The reduction of one call: float32 sums of dk and dv over all ranks that see the keys."""

    def __init__(self, reduce: DkvReduce, k_LGD: torch.Tensor, v_LGD: torch.Tensor) -> None:
        import torch

        self._reduce = reduce
        self._dtype = k_LGD.dtype
        self._sums = tuple(torch.zeros(x.shape, dtype=torch.float32, device=x.device) for x in (k_LGD, v_LGD))
        self._buffers = [
            tuple(
                reduce.receive_buffers.empty(name, (reduce.num_keys, *x.shape[1:]), x)
                for name, x in zip(buffer_names(STREAM, parity), (k_LGD, v_LGD), strict=True)
            )
            for parity in range(2)
        ]
        self._pending = (START, Pending())

    def add_own(self, dk: torch.Tensor, dv: torch.Tensor) -> None:
        """Adds the rank's own gradients for its keys, all or none of them."""
        if not len(dk):
            return
        for total, part in zip(self._sums, (dk, dv), strict=True):
            total.add_(part)

    def post(self, number: int, dk: torch.Tensor | None, dv: torch.Tensor | None) -> None:
        """Sends a step's gradients to the owners of the keys, and adds those received for the previous step.

        Called after the kernel of each step except the first.

        Args:
            dk, dv: keys of `Plan.needed_kv` after the rank's own × heads × D; None if the rank had no kernel.
        """
        reduce = self._reduce
        parts = tuple(x.contiguous() for x in (dk, dv) if x is not None)
        parity = number % 2
        all_to_all = reduce.all_to_alls[number]
        if all_to_all is not None:
            messages = all_to_all.post(
                reduce.stream, parts or [x[:0] for x in self._buffers[parity]], self._buffers[parity]
            )
            self.add_received()
            self._pending = (number, messages)
            return
        offsets = [
            reduce.receive_buffers.offset(name, row * part[0].numel())
            for row in reduce.target_rows[number]
            for name, part in zip(buffer_names(STREAM, parity), parts, strict=True)
        ]
        sends = [
            (*message, offset)
            for message, offset in zip(
                row_messages(reduce.sends[number], parts, reduce.ranks), offsets, strict=True
            )
        ]
        receives = row_messages(reduce.receives[number], self._buffers[parity], reduce.ranks)
        messages = reduce.stream.post(sends, receives)
        self.add_received()
        self._pending = (number, messages)

    def add_received(self) -> None:
        """Waits for the gradients of the last posted step, and adds them to the sums."""
        number, messages = self._pending
        messages.wait()
        transfers = self._reduce.receives[number] if number >= 0 else []
        start = 0
        for transfer in transfers:
            for total, received in zip(self._sums, self._buffers[number % 2], strict=True):
                total[transfer.start : transfer.end].add_(received[start : start + len(transfer)])
            start += len(transfer)
        self._pending = (START, Pending())

    def finish(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(dk, dv) in the dtype of the keys."""
        self.add_received()
        dk, dv = (total.to(self._dtype) for total in self._sums)
        return dk, dv
