"""Attention in a fixed order of fixed parts, so that results have the same bits for any number of ranks.

The kernel calls, their inputs and the order of sums are those of `longca.cp.schedule.fixed_plan`, which do
not depend on ranks. Three more things could change bits, and are fixed here:

- Heads: a rank has some of them. A kernel that `keeps_bits_of_heads` takes them in one call; any other is
  called once for each KV head with its query heads. Each head group of the mask has its own calls.
- Memory: inputs of a call are copies, as aligned as any new tensor.
- Threads: on CPUs a call uses one, since matrix products depend on their number.

Heads may be divided into chunks: the keys of all chunks are requested first, and arrive while an earlier
chunk is computed. Chunks change no bits.

Shapes: L tokens of the rank; H query heads, G KV heads of which a chunk has h and g, D head dim; n rows and m
    keys of a part.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from longca.cp.contract import HeadStrategy, PreparedByHeads, TokenShard
from longca.cp.partition.fixed_parts import PartSharding
from longca.cp.partition.mesh import formula_bytes
from longca.cp.partition.sharding import even_ranges
from longca.cp.runtime.accumulate import LocalCall, sum_of_costs
from longca.cp.runtime.fixed_exchange import FixedDkvSums, FixedKeyExchange, FixedRank, put_rows, rows_of
from longca.cp.runtime.head_exchange import HeadExchange
from longca.cp.runtime.head_pipeline import HeadPipeline
from longca.cp.schedule.fixed_plan import FixedPlan, fixed_refusal, partition_fixed
from longca.cp.schedule.planner import CALL_S, INTRA_NODE_BYTES_PER_S
from longca.cp.schedule.work_partition import describe_chunks
from longca.kernels import Forward
from longca.masks import whole_mask

if TYPE_CHECKING:
    import torch

    from longca.core import Answer, CallSpec
    from longca.cp.comm.backend import Comm
    from longca.cp.comm.p2p import ReceiveBuffers
    from longca.cp.contract import Grads, LocalAttention
    from longca.cp.partition.mesh import ChunkWeights, Mesh
    from longca.cp.partition.sharding import Sharding
    from longca.cp.schedule.fixed_plan import RankPart
    from longca.cp.schedule.work_partition import WorkPartition
    from longca.kernels import Kernel, Problem
    from longca.masks import LazyMask, Mask

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
        self.share = FixedRank(
            plan,
            rank,
            ranks,
            plan.rank_parts(rank),
            even_ranges(problem.num_kv_heads, _num_chunks(plan, problem)),
            problem,
            receive_buffers,
        )
        self.groups = groups
        self._exchange = FixedKeyExchange(self.share, comm)
        self._reduce = FixedDkvSums(self.share, comm) if problem.needs_backward else None

    def prepare(self, kernel: Kernel) -> None:
        """Prepares the kernel calls. It is a separate method, since a single rank may fail here, while
        earlier steps are collective."""
        calls: dict[tuple[str, int], LocalCall] = {}
        self.calls = {
            (number, index): _PartCall(self, part, chunk, kernel, calls)
            for number, part in self.share.parts.items()
            for index, chunk in enumerate(self.share.chunks)
        }
        self.prepared = [call.prepared for call in calls.values()]

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor | None
    ) -> Forward:
        import torch

        problem = self.share.problem
        with torch.no_grad():
            out = torch.zeros_like(q)
            lse = torch.full(q.shape[:2], -torch.inf, dtype=torch.float32, device=q.device)
            for index, keys in enumerate(self._exchange.start(k, v)):
                keys.wait()
                heads = self.query_heads(self.share.chunks[index])
                for number, part in self.share.parts.items():
                    rows = rows_of(q[:, heads], part.rows)
                    of_heads = None if sinks is None else sinks[heads]
                    results = self.calls[number, index].forward(rows, *keys.of(part), of_heads)
                    for total, result in zip((out, lse), results, strict=True):
                        put_rows(total[:, heads], part.rows, result)
            return Forward(out, lse, (q, k, v, out, lse, sinks) if problem.needs_backward else None)

    def backward(self, saved: Any, dout: torch.Tensor) -> Grads:
        """(dq, dk, dv, that of the sinks, from this rank's rows). Keys are exchanged again."""
        import torch

        from longca.ops import sinks_gradient

        assert self._reduce is not None
        q, k, v, out, lse, sinks = saved
        with torch.no_grad():
            dq = torch.zeros_like(q)
            sums = self._reduce.start(k, v)
            for index, keys in enumerate(self._exchange.start(k, v)):
                keys.wait()
                heads = self.query_heads(self.share.chunks[index])
                for number in range(self.share.plan.num_rounds):
                    grads = None
                    part = self.share.parts.get(number)
                    if part is not None:
                        of_rows = [rows_of(x[:, heads], part.rows) for x in (q, out, lse, dout)]
                        dq_part, *grads = self.calls[number, index].backward(
                            of_rows[0], *keys.of(part), *of_rows[1:]
                        )
                        put_rows(dq[:, heads], part.rows, dq_part)
                    sums.post(index, number, grads)
            dsinks = None if sinks is None else sinks_gradient(out, lse, dout, None, sinks)
            return dq, *sums.finish(), dsinks

    def query_heads(self, kv_heads: range) -> slice:
        ratio = self.share.problem.num_q_heads // self.share.problem.num_kv_heads
        return slice(kv_heads.start * ratio, kv_heads.stop * ratio)


def _num_chunks(plan: FixedPlan, problem: Problem) -> int:
    """The number of chunks of heads, the same on all ranks: two, if half of the keys take longer to arrive
    than the additional calls."""
    fewest = -(-problem.num_kv_heads // KV_HEADS_OF_CHUNK)
    row_bytes = 2 * problem.num_kv_heads * problem.head_dim * problem.dtype.itemsize
    arrival_s = max(map(plan.num_received, range(plan.world))) * row_bytes / INTRA_NODE_BYTES_PER_S
    return max(fewest, min(2, problem.num_kv_heads) if arrival_s / 2 > plan.num_rounds * CALL_S else 1)


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
        problem = attention.share.problem
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

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(out n × h × D, LSE n × h). Sinks are joined call by call, since on CPUs the bits of an exponential
        depend on the shape."""
        import torch

        from longca.ops import join_sinks

        out = torch.zeros_like(q)
        lse = torch.full(q.shape[:2], -torch.inf, dtype=torch.float32, device=q.device)
        if sinks is not None:
            lse[:] = sinks
        for q_heads, kv_heads, call in self._calls:
            with _one_thread(self._device):
                result, result_lse = call.forward(_copy(q, q_heads), _copy(k, kv_heads), _copy(v, kv_heads))
                result_lse = result_lse.masked_fill(result_lse == torch.inf, -torch.inf)
                if sinks is not None:
                    result, result_lse = join_sinks(result, result_lse, sinks[q_heads])
            out[:, q_heads] = result
            lse[:, q_heads] = result_lse
        return out, lse

    def backward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        dout: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(dq n × h × D, dk and dv m × g × D)."""
        import torch

        grads = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for q_heads, kv_heads, call in self._calls:
            heads = q_heads, kv_heads, kv_heads, q_heads, q_heads, q_heads
            given = [_copy(x, part) for x, part in zip((q, k, v, out, lse, dout), heads, strict=True)]
            with _one_thread(self._device):
                results = call.backward(*given)
            for total, part, result in zip(grads, heads[:3], results, strict=True):
                total[:, part] = result
        return grads


class PreparedFixed(PreparedByHeads):
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
        if exchange is None:
            assert calls[0] is not None, "a rank alone has all heads"
            self._attention: LocalAttention = calls[0]
        else:
            self._attention = HeadPipeline(exchange, work.chunks, list(calls), problem.needs_backward)
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
        self.notes += dict.fromkeys(note for one in prepared for note in one.notes)


class FixedOrder(HeadStrategy):
    """A strategy with sums in a fixed order of fixed parts. Its mesh, which decides which ranks share heads
    and keys, is all that is left of it."""

    def __init__(self, strategy: HeadStrategy) -> None:
        self.name = strategy.name
        self.params = strategy.params
        self._strategy = strategy

    def available(self, device_type: str) -> Answer:
        return self._strategy.available(device_type)

    def mesh(self, world: int, num_kv_heads: int) -> Mesh:
        return self._strategy.mesh(world, num_kv_heads)

    def unfit_ranks(self, call: CallSpec, world: int) -> Answer:
        return self._strategy.unfit_ranks(call, world)

    def refusal(
        self, mask: Mask | LazyMask, call: CallSpec, world: int, kernel: Kernel, device_type: str
    ) -> Answer:
        return fixed_refusal(self._strategy, whole_mask(mask), call, world, kernel, device_type)

    def partition_call(
        self,
        mask: Mask,
        call: CallSpec,
        world: int,
        kernel: Kernel,
        device_type: str,
        weights: ChunkWeights | None = None,
        sharding: Sharding | None = None,
    ) -> WorkPartition:
        return partition_fixed(self.mesh(world, call.num_kv_heads), mask, call, sharding)

    def prepare_work(
        self, problem: Problem, kernel: Kernel, comm: Comm, work: WorkPartition, planning_ms: float
    ) -> PreparedFixed:
        return PreparedFixed(problem, kernel, comm, work)


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
