"""Reduction of dk and dv: ranks send gradients of keys directly to the owner of the keys.

In most other rings, gradients are sent along with the keys: each key's sum makes P hops in float32. Sent
directly they make P − 1 hops, in the dtype of the kernels' gradients. No step waits for a sum of another
rank, and only gradients of used keys are sent. The owner adds up in float32, so each part is rounded once for
any number of ranks. Sums in memory have only the keys between the first and the last one that others send
gradients of, and where no key has more than one such part, it is added to the owner's own in one pass.

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
from longca.cp.schedule.memory import summed_keys
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
        self.summed, self.most_parts = summed_keys(self.receives)
        self.num_keys = max(sum(map(len, transfers)) for transfers in self.receives)
        """the largest number of keys whose gradients are received after one step"""
        for name in (*buffer_names(STREAM, 0), *buffer_names(STREAM, 1)):
            receive_buffers.reserve(name, self.num_keys * row_bytes)

    def start(self, k_LGD: torch.Tensor, v_LGD: torch.Tensor) -> DkvReduceInFlight:
        """Begins the reduction for a rank's own keys."""
        return DkvReduceInFlight(self, k_LGD, v_LGD)


class DkvReduceInFlight:
    """The reduction of one call: sums of dk and dv over all ranks that see the keys."""

    def __init__(self, reduce: DkvReduce, k_LGD: torch.Tensor, v_LGD: torch.Tensor) -> None:
        self._reduce = reduce
        self._kv = k_LGD, v_LGD
        self._own: tuple[torch.Tensor, ...] = ()
        """the rank's own gradients, to which others are added in the end"""
        self._sums: tuple[torch.Tensor, ...] = ()
        """in float32, of `DkvReduce.summed`, where a key has several received parts"""
        self._buffers = [
            tuple(
                reduce.receive_buffers.empty(name, (reduce.num_keys, *x.shape[1:]), x)
                for name, x in zip(buffer_names(STREAM, parity), (k_LGD, v_LGD), strict=True)
            )
            for parity in range(2)
        ]
        self._pending = (START, Pending())

    def add_own(self, dk: torch.Tensor, dv: torch.Tensor) -> None:
        """Adds the rank's own gradients for its keys, all or none of them, before any others. They are
        overwritten, unless they are a part of a larger tensor."""
        if len(dk):
            self._begin(tuple(_alone(x.to(self._kv[0].dtype)) for x in (dk, dv)))

    def _begin(self, own: tuple[torch.Tensor, ...]) -> None:
        assert not self._own, "a rank computes with its own keys once"
        self._own = own
        if self._reduce.most_parts > 1:
            self._sums = tuple(x[self._reduce.summed].float() for x in own)

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
        import torch

        number, messages = self._pending
        messages.wait()
        if not self._own:  # no kernel had its own keys
            self._begin(tuple(torch.zeros_like(x) for x in self._kv))
        transfers = self._reduce.receives[number] if number >= 0 else []
        first = self._reduce.summed.start if self._sums else 0
        start = 0
        for transfer in transfers:
            rows = slice(transfer.start - first, transfer.end - first)
            for total, received in zip(self._sums or self._own, self._buffers[number % 2], strict=True):
                total[rows].add_(received[start : start + len(transfer)])
            start += len(transfer)
        self._pending = (START, Pending())

    def finish(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(dk, dv) in the dtype of the keys."""
        self.add_received()
        for own, total in zip(self._own, self._sums, strict=False):
            own[self._reduce.summed].copy_(total)
        dk, dv = self._own
        return dk, dv


def _alone(x: torch.Tensor) -> torch.Tensor:
    """The tensor, contiguous, without others in its memory."""
    x = x.contiguous()
    return x if x.untyped_storage().nbytes() == x.nbytes else x.clone()
