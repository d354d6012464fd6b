"""Attention in a fixed order of fixed parts, so that results have the same bits for any number of ranks.

The kernel calls, their inputs and the order of sums are those of `longca.cp.schedule.fixed_plan`, which do not
depend on ranks. Three more things could change bits, and are fixed here:

- Heads: a rank has some of them. A kernel that `keeps_bits_of_heads` takes them in one call; any other is called
  once for each KV head with its query heads. Each head group of the mask has its own calls.
- Memory: inputs of a call are copies, as aligned as any new tensor.
- Threads: on CPUs a call uses one, since matrix products depend on their number.

Heads are divided into chunks: the keys of all chunks are requested first, and arrive while an earlier chunk is
computed. Chunks change no bits.

Shapes: L tokens of the rank; H query heads, G KV heads of which a chunk has h and g, D head dim; n rows and m keys
of a part.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from longca.cp.comm.p2p import Pending
from longca.cp.contract import PreparedStrategy, TokenShard
from longca.cp.partition.fixed_parts import PartSharding
from longca.cp.partition.mesh import formula_bytes
from longca.cp.partition.sharding import even_ranges
from longca.cp.runtime.accumulate import LocalCall, sum_of_costs
from longca.cp.runtime.head_exchange import HeadExchange
from longca.cp.runtime.head_pipeline import HeadPipeline
from longca.cp.runtime.kv_exchange import buffer_names
from longca.cp.schedule.fixed_plan import FixedPlan
from longca.cp.schedule.work_partition import describe_chunks
from longca.kernels import Forward

if TYPE_CHECKING:
    import torch

    from longca.cp.comm.backend import Comm
    from longca.cp.comm.p2p import ReceiveBuffers
    from longca.cp.schedule.fixed_plan import RankPart, Rows
    from longca.cp.schedule.work_partition import WorkPartition
    from longca.kernels import Kernel, Problem

    Grads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

KEYS = "fixed keys"
GRADIENTS = "fixed gradients"
KV_HEADS_OF_CHUNK = 8  # at most: gradients wait for their turn at the owner of the keys, a round of all ranks


class FixedAttention:
    """Attention of one rank of a ring, for the rank's heads.

    Args:
        rank: of the ring.
        ranks: ranks of the job, in the order of the ring.
        groups: the mask's head groups of these heads.
        problem: problem of these heads, with the whole mask and `planned_kv_heads`.
    """

    def __init__(
        self,
        plan: FixedPlan,
        rank: int,
        ranks: Sequence[int],
        groups: range,
        comm: Comm,
        receive_buffers: ReceiveBuffers,
        problem: Problem,
    ) -> None:
        self.plan = plan
        self.rank = rank
        self.ranks = ranks
        self.groups = groups
        self.problem = problem
        self.receive_buffers = receive_buffers
        self.parts = plan.rank_parts(rank)
        num_kv_heads = problem.num_kv_heads
        fewest = -(-num_kv_heads // KV_HEADS_OF_CHUNK)
        self.chunks = even_ranges(
            num_kv_heads, fewest if plan.world == 1 else max(fewest, min(2, num_kv_heads))
        )
        """KV heads of each chunk"""
        self.exchange = _KeyExchange(self, comm)
        self.reduce = _DkvSums(self, comm) if problem.needs_backward else None

    def prepare(self, kernel: Kernel) -> None:
        """Prepares the kernel calls. It is a separate method, since a single rank may fail here, while earlier
        steps are collective."""
        calls: dict[tuple[str, int], LocalCall] = {}
        self.calls = {
            (number, index): _PartCall(self, part, chunk, kernel, calls)
            for number, part in self.parts.items()
            for index, chunk in enumerate(self.chunks)
        }
        self.prepared = [call.prepared for call in calls.values()]

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Forward:
        import torch

        problem = self.problem
        with torch.no_grad():
            out = torch.zeros_like(q)
            lse = torch.full(q.shape[:2], -torch.inf, dtype=torch.float32, device=q.device)
            for index, keys in enumerate(self.exchange.start(k, v)):
                keys.wait()
                heads = self.query_heads(self.chunks[index])
                for number, part in self.parts.items():
                    rows = _rows(q[:, heads], part.rows)
                    results = self.calls[number, index].forward(rows, *keys.of(part))
                    for total, result in zip((out, lse), results, strict=True):
                        _put(total[:, heads], part.rows, result)
            return Forward(out, lse, (q, k, v, out, lse) if problem.needs_backward else None)

    def backward(self, saved: Any, dout: torch.Tensor) -> Grads:
        """(dq, dk, dv). Keys are exchanged again."""
        import torch

        assert self.reduce is not None
        q, k, v, out, lse = saved
        with torch.no_grad():
            dq = torch.zeros_like(q)
            sums = self.reduce.start(k, v)
            for index, keys in enumerate(self.exchange.start(k, v)):
                keys.wait()
                heads = self.query_heads(self.chunks[index])
                for number in range(self.plan.num_rounds):
                    grads = None
                    part = self.parts.get(number)
                    if part is not None:
                        of_rows = [_rows(x[:, heads], part.rows) for x in (q, out, lse, dout)]
                        dq_part, *grads = self.calls[number, index].backward(
                            of_rows[0], *keys.of(part), *of_rows[1:]
                        )
                        _put(dq[:, heads], part.rows, dq_part)
                    sums.post(index, number, grads)
            return dq, *sums.finish()

    def query_heads(self, kv_heads: range) -> slice:
        ratio = self.problem.num_q_heads // self.problem.num_kv_heads
        return slice(kv_heads.start * ratio, kv_heads.stop * ratio)


class _PartCall:
    """The kernel calls of a part, for a chunk of heads: one call, or one for each head or head group."""

    def __init__(
        self,
        attention: FixedAttention,
        part: RankPart,
        chunk: range,
        kernel: Kernel,
        calls: dict[tuple[str, int], LocalCall],
    ) -> None:
        """
        Args:
            calls: those that exist, by digest of the mask and number of KV heads.
        """
        problem = attention.problem
        self._device = problem.device
        ratio = problem.num_q_heads // problem.num_kv_heads
        per_group = problem.num_kv_heads // len(attention.groups)
        self._calls: list[tuple[slice, slice, LocalCall]] = []
        """(query heads and KV heads of the chunk, call)"""
        for number, group in enumerate(attention.groups):
            mask = part.part.mask.select_groups(group, group + 1)
            of_group = range(max(number * per_group, chunk.start), min((number + 1) * per_group, chunk.stop))
            step = max(len(of_group), 1) if kernel.keeps_bits_of_heads else 1
            for head in of_group[::step] if mask.area else ():
                if (mask.digest, step) not in calls:
                    calls[mask.digest, step] = LocalCall(
                        kernel, replace(problem, mask=mask, num_q_heads=step * ratio, num_kv_heads=step)
                    )
                first = head - chunk.start
                kv_heads = slice(first, first + step)
                q_heads = slice(first * ratio, (first + step) * ratio)
                self._calls.append((q_heads, kv_heads, calls[mask.digest, step]))

    @property
    def num_calls(self) -> int:
        return len(self._calls)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(out n × h × D, LSE n × h)."""
        import torch

        out = torch.zeros_like(q)
        lse = torch.full(q.shape[:2], -torch.inf, dtype=torch.float32, device=q.device)
        for q_heads, kv_heads, call in self._calls:
            with _one_thread(self._device):
                result, result_lse = call.forward(_copy(q, q_heads), _copy(k, kv_heads), _copy(v, kv_heads))
            out[:, q_heads] = result
            lse[:, q_heads] = result_lse.masked_fill(result_lse == torch.inf, -torch.inf)
        return out, lse

    def backward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        dout: torch.Tensor,
    ) -> Grads:
        """(dq n × h × D, dk and dv m × g × D)."""
        import torch

        grads = tuple(torch.zeros_like(x) for x in (q, k, v))
        for q_heads, kv_heads, call in self._calls:
            heads = q_heads, kv_heads, kv_heads, q_heads, q_heads, q_heads
            given = [_copy(x, part) for x, part in zip((q, k, v, out, lse, dout), heads, strict=True)]
            with _one_thread(self._device):
                results = call.backward(*given)
            for total, part, result in zip(grads, heads[:3], results, strict=True):
                total[:, part] = result
        return grads


class _KeyExchange:
    """Each rank gets the keys that its parts see from their owners, chunk after chunk of heads."""

    def __init__(self, attention: FixedAttention, comm: Comm) -> None:
        plan, rank = attention.plan, attention.rank
        self._attention = attention
        self._peers = [peer for peer in range(plan.world) if peer != rank]
        self.sends = {peer: plan.key_rows(peer, rank) for peer in self._peers}
        self.receives = {peer: _count(plan.key_rows(rank, peer)) for peer in self._peers}
        self.num_received = sum(self.receives.values())
        # in a receiver's buffer, rows of owners follow each other
        self._target_rows = {
            peer: sum(_count(plan.key_rows(peer, owner)) for owner in range(rank) if owner != peer)
            for peer in self._peers
        }
        self._stream = comm.stream("keys") if self._peers else None
        problem = attention.problem
        row_bytes = problem.head_dim * problem.dtype.itemsize
        for number, chunk in enumerate(attention.chunks):
            for name in buffer_names(KEYS, number):
                attention.receive_buffers.reserve(name, self.num_received * len(chunk) * row_bytes)

    def start(self, k: torch.Tensor, v: torch.Tensor) -> list[_Keys]:
        """Posts all messages; the keys of each chunk."""
        return [self._post(number, k, v) for number in range(len(self._attention.chunks))]

    def _post(self, number: int, k: torch.Tensor, v: torch.Tensor) -> _Keys:
        attention = self._attention
        buffers = attention.receive_buffers
        chunk = attention.chunks[number]
        names = buffer_names(KEYS, number)
        own = [x[:, chunk.start : chunk.stop] for x in (k, v)]
        received = [
            buffers.empty(name, (self.num_received, *x.shape[1:]), x)
            for name, x in zip(names, own, strict=True)
        ]
        sends = [
            (
                attention.ranks[peer],
                _rows(x, self.sends[peer]),
                buffers.offset(name, self._target_rows[peer] * x[0].numel()),
            )
            for peer in self._peers
            if self.sends[peer]
            for name, x in zip(names, own, strict=True)
        ]
        ends = list(accumulate(self.receives.values()))
        receives = [
            (attention.ranks[peer], x[end - count : end])
            for (peer, count), end in zip(self.receives.items(), ends, strict=True)
            if count
            for x in received
        ]
        messages = self._stream.post(sends, receives) if self._stream is not None else Pending()
        return _Keys(own, received, messages)


class _Keys:
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


class _DkvSums:
    """Sums of dk and dv at the owner of the keys, in the order of parts. As in `DkvReduce`, two receive buffers
    alternate, and gradients of one round are added after the kernel of the next."""

    def __init__(self, attention: FixedAttention, comm: Comm) -> None:
        plan, rank = attention.plan, attention.rank
        self.attention = attention
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
        problem = attention.problem
        row_bytes = max(map(len, attention.chunks)) * problem.head_dim * problem.dtype.itemsize
        for name in (*buffer_names(GRADIENTS, 0), *buffer_names(GRADIENTS, 1)):
            attention.receive_buffers.reserve(name, self.num_rows * row_bytes)

    def start(self, k: torch.Tensor, v: torch.Tensor) -> _DkvSumsInFlight:
        return _DkvSumsInFlight(self, k, v)


class _DkvSumsInFlight:
    """The sums of one call, in float32."""

    def __init__(self, sums: _DkvSums, k: torch.Tensor, v: torch.Tensor) -> None:
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
        attention = self._sums.attention
        buffers = attention.receive_buffers
        names = buffer_names(GRADIENTS, self._count % 2)
        self._count += 1
        chunk = attention.chunks[index]
        own = []
        sends = []
        if grads is not None:
            of_owner = attention.parts[number].of_owner
            own = [_rows(x, of_owner.get(attention.rank, ())) for x in grads]
            sends = [
                (
                    attention.ranks[owner],
                    _rows(x, rows),
                    buffers.offset(name, self._sums.target_rows[number][owner] * x[0].numel()),
                )
                for owner, rows in sorted(of_owner.items())
                if owner != attention.rank
                for name, x in zip(names, grads, strict=True)
            ]
        received = [
            buffers.empty(name, (self._sums.num_rows, len(chunk), x.shape[2]), x)
            for name, x in zip(names, self._like, strict=True)
        ]
        receives = []
        start = 0
        for addend in self._sums.addends[number]:
            if addend.rank != attention.rank:
                rank = attention.ranks[addend.rank]
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
        attention = self._sums.attention
        heads = slice(attention.chunks[index].start, attention.chunks[index].stop)
        place = 0
        for addend in self._sums.addends[number]:
            is_own = addend.rank == attention.rank
            first = 0 if is_own else place
            for start, end in addend.rows:
                for total, x in zip(self._totals, own if is_own else received, strict=True):
                    total[start:end, heads].add_(x[first : first + end - start])
                first += end - start
            place = place if is_own else first


class PreparedFixed(PreparedStrategy):
    """Any strategy of this project in a fixed order: its mesh decides which ranks share heads and keys."""

    def __init__(self, problem: Problem, kernel: Kernel, comm: Comm, work: WorkPartition) -> None:
        """
        Args:
            work: made by `partition_fixed`.
        """
        mesh = work.mesh
        sharding = work.plan.sharding
        assert isinstance(sharding, PartSharding)
        super().__init__(problem, TokenShard(mesh.positions(sharding, comm.rank)))
        start_s = time.perf_counter()
        plan = FixedPlan(problem.mask, sharding)
        ring_rank, number = mesh.of(comm.rank)
        receive_buffers = comm.receive_buffers()
        exchange = None
        if mesh.heads > 1:
            exchange = HeadExchange(
                comm, mesh.group(comm.rank), mesh.tokens(sharding, ring_rank), receive_buffers
            )
            exchange.reserve(work.chunks, problem)
        calls: list[FixedAttention | None] = []
        parts: dict[tuple[range, int], FixedAttention] = {}
        for chunk in work.chunks:
            heads = chunk.heads.ranks[number]
            if not heads.q:
                calls.append(None)
                continue
            groups = work.mask_groups(chunk, number)
            if (groups, len(heads.kv)) not in parts:
                of_heads = replace(
                    problem,
                    num_q_heads=len(heads.q),
                    num_kv_heads=len(heads.kv),
                    planned_kv_heads=problem.num_kv_heads,
                )
                parts[groups, len(heads.kv)] = FixedAttention(
                    plan, ring_rank, list(mesh.ring_of(comm.rank)), groups, comm, receive_buffers, of_heads
                )
            calls.append(parts[groups, len(heads.kv)])
        receive_buffers.allocate()
        schedule_ms = (time.perf_counter() - start_s) * 1e3
        for part in parts.values():
            part.prepare(kernel)
        self._local: Any = (
            calls[0]
            if exchange is None
            else HeadPipeline(exchange, work.chunks, calls, problem.needs_backward)
        )
        prepared = [one for part in parts.values() for one in part.prepared]
        costs = sum_of_costs(prepared)
        areas = plan.areas
        self.costs |= costs | {
            "schedule_ms": schedule_ms,
            "plan_ms": schedule_ms + costs.get("plan_ms", 0.0),
            "num_kernel_calls": float(
                sum(call.num_calls for one in calls if one is not None for call in one.calls.values())
            ),
            "area_imbalance": max(areas) * len(areas) / max(sum(areas), 1),
            "formula_bytes": formula_bytes(problem, mesh),
        }
        self._note(work, comm, len(sharding.part_owner), any(one is not None for one in calls), prepared)

    def _note(
        self, work: WorkPartition, comm: Comm, num_parts: int, has_heads: bool, prepared: list[Any]
    ) -> None:
        mesh = work.mesh
        self.notes = [
            f"sums in a fixed order of {num_parts} parts: the same bits on any number of ranks",
            f"keys gathered among {mesh.ring}" + (f", heads among {mesh.heads}" if mesh.heads > 1 else ""),
            *([f"in chunks of {describe_chunks(work.chunks)}"] if len(work.chunks) > 1 else []),
            f"tokens: {work.plan.sharding.name}",
            *([] if has_heads else [f"rank {comm.rank} has no heads"]),
            *filter(None, [comm.messages_note]),
        ]
        self.notes += [note for note in dict.fromkeys(note for one in prepared for note in one.notes)]

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Forward:
        return self._local.forward(q.detach(), k.detach(), v.detach())

    def backward(self, forward: Forward, dout: torch.Tensor) -> Grads:
        return self._local.backward(forward.saved, dout.detach())


def _count(rows: Rows) -> int:
    return sum(end - start for start, end in rows)


def _rows_before(addends: Sequence[Any], rank: int, owner: int) -> int:
    """Rows that the owner receives, in a round, before those of a rank."""
    before = 0
    for addend in addends:
        if addend.rank == rank:
            break
        before += len(addend) if addend.rank != owner else 0
    return before


def _rows(x: torch.Tensor, rows: Rows) -> torch.Tensor:
    """A contiguous copy of some rows."""
    import torch

    return torch.cat([x[start:end] for start, end in rows]) if rows else x[:0].contiguous()


def _put(total: torch.Tensor, rows: Rows, x: torch.Tensor) -> None:
    """Writes consecutive rows of `x` to these rows."""
    first = 0
    for start, end in rows:
        total[start:end] = x[first : first + end - start]
        first += end - start


def _copy(x: torch.Tensor, heads: slice) -> torch.Tensor:
    """These heads of a new tensor, contiguous, at an address as aligned as its own."""
    import torch

    part = x[:, heads]
    return part if part.shape == x.shape else part.clone(memory_format=torch.contiguous_format)


@contextmanager
def _one_thread(device: torch.device) -> Iterator[None]:
    """On a CPU, one thread computes: with several, matrix products are divided among them."""
    import torch

    count = torch.get_num_threads()
    if device.type != "cpu" or count == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(count)
