"""Messages of attention in a fixed order: keys to the ranks whose parts see them, and dk and dv back to the
owners of the keys, where they are added in the order of parts.

Shapes: G KV heads of the rank, of which a chunk has g; D head dim; m keys of a part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from longca.cp.comm.p2p import Pending
from longca.cp.runtime.kv_exchange import buffer_names
from longca.cp.schedule.fixed_plan import num_rows

if TYPE_CHECKING:
    import torch

    from longca.cp.comm.backend import Comm
    from longca.cp.comm.p2p import ReceiveBuffers
    from longca.cp.schedule.fixed_plan import Addend, FixedPlan, RankPart, Rows
    from longca.kernels import Problem

KEYS = "fixed keys"
GRADIENTS = "fixed gradients"


@dataclass(frozen=True)
class FixedRank:
    """One rank of a ring, with its heads."""

    plan: FixedPlan
    rank: int
    """of the ring"""
    ranks: Sequence[int]
    """of the job, in the order of the ring"""
    parts: dict[int, RankPart]
    """by round"""
    chunks: tuple[range, ...]
    """KV heads of each chunk"""
    problem: Problem
    """of the rank's heads"""
    receive_buffers: ReceiveBuffers


class FixedKeyExchange:
    """Each rank gets the keys that its parts see from their owners, chunk after chunk of heads."""

    def __init__(self, share: FixedRank, comm: Comm) -> None:
        plan = share.plan
        rank = share.rank
        self._share = share
        self._peers = [peer for peer in range(plan.world) if peer != rank]
        self.sends = {peer: plan.key_rows(peer, rank) for peer in self._peers}
        self.receives = {peer: num_rows(plan.key_rows(rank, peer)) for peer in self._peers}
        self.num_received = plan.num_received(rank)
        # in a receiver's buffer, rows of owners follow each other
        self._target_rows = {
            peer: sum(num_rows(plan.key_rows(peer, owner)) for owner in range(rank) if owner != peer)
            for peer in self._peers
        }
        self._stream = comm.stream("keys") if self._peers else None
        problem = share.problem
        row_bytes = problem.head_dim * problem.dtype.itemsize
        for number, chunk in enumerate(share.chunks):
            for name in buffer_names(KEYS, number):
                share.receive_buffers.reserve(name, self.num_received * len(chunk) * row_bytes)

    def start(self, k: torch.Tensor, v: torch.Tensor) -> list[FixedKeys]:
        """Posts all messages; the keys of each chunk."""
        return [self._post(number, k, v) for number in range(len(self._share.chunks))]

    def _post(self, number: int, k: torch.Tensor, v: torch.Tensor) -> FixedKeys:
        share = self._share
        buffers = share.receive_buffers
        chunk = share.chunks[number]
        names = buffer_names(KEYS, number)
        own = [x[:, chunk.start : chunk.stop] for x in (k, v)]
        received = [
            buffers.empty(name, (self.num_received, *x.shape[1:]), x)
            for name, x in zip(names, own, strict=True)
        ]
        sends = [
            (
                share.ranks[peer],
                rows_of(x, self.sends[peer]),
                buffers.offset(name, self._target_rows[peer] * x[0].numel()),
            )
            for peer in self._peers
            if self.sends[peer]
            for name, x in zip(names, own, strict=True)
        ]
        ends = list(accumulate(self.receives.values()))
        receives = [
            (share.ranks[peer], x[end - count : end])
            for (peer, count), end in zip(self.receives.items(), ends, strict=True)
            if count
            for x in received
        ]
        messages = self._stream.post(sends, receives) if self._stream is not None else Pending()
        return FixedKeys(own, received, messages)


class FixedKeys:
    """Keys of a chunk of heads: those of this rank, and those that arrive."""

    def __init__(self, own: list[torch.Tensor], received: list[torch.Tensor], messages: Pending) -> None:
        self._sources = list(zip(own, received, strict=True))
        self._messages = messages

    def wait(self) -> None:
        self._messages.wait()

    def of(self, part: RankPart) -> tuple[torch.Tensor, torch.Tensor]:
        """(k, v) of a part's call, m × g × D."""
        import torch

        k, v = (
            torch.cat([(own if keys.is_own else received)[keys.start : keys.end] for keys in part.keys])
            for own, received in self._sources
        )
        return k, v


class FixedDkvSums:
    """Sums of dk and dv at the owner of the keys, in the order of parts. As in `DkvReduce`, two receive
    buffers alternate, and gradients of one round are added after the kernel of the next."""

    def __init__(self, share: FixedRank, comm: Comm) -> None:
        plan = share.plan
        rank = share.rank
        self.share = share
        self.addends = [plan.addends(rank, number) for number in range(plan.num_rounds)]
        self.stream = comm.stream("gradients") if plan.world > 1 else None
        self.num_rows = max(
            (sum(len(one) for one in addends if one.rank != rank) for addends in self.addends), default=0
        )
        self.target_rows = [
            {
                peer: _rows_before(plan.addends(peer, number), rank, peer)
                for peer in range(plan.world)
                if peer != rank
            }
            for number in range(plan.num_rounds)
        ]
        problem = share.problem
        row_bytes = max(map(len, share.chunks)) * problem.head_dim * problem.dtype.itemsize
        for name in (*buffer_names(GRADIENTS, 0), *buffer_names(GRADIENTS, 1)):
            share.receive_buffers.reserve(name, self.num_rows * row_bytes)

    def start(self, k: torch.Tensor, v: torch.Tensor) -> FixedDkvSumsInFlight:
        return FixedDkvSumsInFlight(self, k, v)


class FixedDkvSumsInFlight:
    """The sums of one call, in float32."""

    def __init__(self, sums: FixedDkvSums, k: torch.Tensor, v: torch.Tensor) -> None:
        import torch

        self._sums = sums
        self._like = k, v
        self._totals = [torch.zeros(x.shape, dtype=torch.float32, device=x.device) for x in (k, v)]
        self._count = 0
        self._pending: tuple[Pending, int, int, list[torch.Tensor], list[torch.Tensor]] | None = None
        """messages; chunk and round; dk and dv of own keys, and those that arrive"""

    def post(self, index: int, number: int, grads: Sequence[torch.Tensor] | None) -> None:
        """Sends dk and dv of a round to the owners of the keys, and adds those of the round before.

        Args:
            index: of the chunk of heads.
            grads: of the rank's part, m × g × D; None if it has none.
        """
        share = self._sums.share
        buffers = share.receive_buffers
        names = buffer_names(GRADIENTS, self._count % 2)
        self._count += 1
        chunk = share.chunks[index]
        own = []
        sends = []
        if grads is not None:
            of_owner = share.parts[number].of_owner
            own = [rows_of(x, of_owner.get(share.rank, ())) for x in grads]
            sends = [
                (
                    share.ranks[owner],
                    rows_of(x, rows),
                    buffers.offset(name, self._sums.target_rows[number][owner] * x[0].numel()),
                )
                for owner, rows in sorted(of_owner.items())
                if owner != share.rank
                for name, x in zip(names, grads, strict=True)
            ]
        received = [
            buffers.empty(name, (self._sums.num_rows, len(chunk), x.shape[2]), x)
            for name, x in zip(names, self._like, strict=True)
        ]
        receives = []
        start = 0
        for addend in self._sums.addends[number]:
            if addend.rank != share.rank:
                rank = share.ranks[addend.rank]
                receives += [(rank, x[start : start + len(addend)]) for x in received]
                start += len(addend)
        stream = self._sums.stream
        messages = stream.post(sends, receives) if stream is not None else Pending()
        self._add_pending()
        self._pending = messages, index, number, own, received

    def finish(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(dk, dv) in the dtype of the keys."""
        self._add_pending()
        dk, dv = (total.to(x.dtype) for total, x in zip(self._totals, self._like, strict=True))
        return dk, dv

    def _add_pending(self) -> None:
        if self._pending is None:
            return
        messages, index, number, own, received = self._pending
        self._pending = None
        messages.wait()
        share = self._sums.share
        heads = slice(share.chunks[index].start, share.chunks[index].stop)
        place = 0
        for addend in self._sums.addends[number]:
            is_own = addend.rank == share.rank
            first = 0 if is_own else place
            for start, end in addend.rows:
                for total, x in zip(self._totals, own if is_own else received, strict=True):
                    total[start:end, heads].add_(x[first : first + end - start])
                first += end - start
            place = place if is_own else first


def _rows_before(addends: Sequence[Addend], rank: int, owner: int) -> int:
    """Rows that the owner receives, in a round, before those of a rank."""
    before = 0
    for addend in addends:
        if addend.rank == rank:
            break
        before += len(addend) if addend.rank != owner else 0
    return before


def rows_of(x: torch.Tensor, rows: Rows) -> torch.Tensor:
    """A contiguous copy of some rows."""
    import torch

    return torch.cat([x[start:end] for start, end in rows]) if rows else x[:0].contiguous()


def put_rows(total: torch.Tensor, rows: Rows, x: torch.Tensor) -> None:
    """Writes consecutive rows of `x` to these rows."""
    first = 0
    for start, end in rows:
        total[start:end] = x[first : first + end - start]
        first += end - start
