"""Predicted memory of a call of a work partition: what the rank that needs most holds at its worst moment.

The tensors are those of `longca.cp.runtime`, moment by moment:

    receive buffers     of keys, of their gradients, of heads: of the whole call, as in symmetric memory
    a step forward      the output; sums in float32 if several steps have the same rows; the kernel's buffers
    a step backward     the same of dQ; dK and dV of the step, and of the last one, still being sent; sums of
                        received dK and dV; the kernel's buffers
    a chunk of heads    besides: packed heads of later chunks, and results of the chunk before, still being
                        sent; backward, all that forward has saved

Shapes: L queries and keys of a rank of the ring.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from longca.cp.partition.mesh import SUM_BYTES
from longca.cp.schedule.keys_at_once import KeyRuns
from longca.cp.schedule.plan import BufferSchedule
from longca.cp.schedule.planner import active_rows
from longca.cp.schedule.timeline import PlanTraffic
from longca.kernels import part_of

if TYPE_CHECKING:
    from longca.core import CallSpec
    from longca.cp.partition.mesh import HeadChunk
    from longca.cp.schedule.plan import Plan, Transfer
    from longca.cp.schedule.work_partition import WorkPartition
    from longca.kernels import Kernel
    from longca.masks import LazyMask, Mask

MOST_LOOKED_AT = 4  # ranks, and steps of each; of more ranks one, and two steps of it


def shard_bytes(num_tokens: float, call: CallSpec) -> float:
    """Bytes of that many tokens of attention's own tensors: inputs and output; backward, gradients too."""
    heads = 2 * call.num_q_heads + 2 * call.num_kv_heads
    return num_tokens * heads * call.head_dim * call.elem_bytes * (2 if call.direction == "bwd" else 1)


def memory_bytes(work: WorkPartition, call: CallSpec, kernel: Kernel) -> float:
    """Largest memory of a rank in a call: its shards, and all buffers."""
    tokens = float(work.plan.sharding.num_tokens.max()) / work.mesh.heads
    return shard_bytes(tokens, call) + buffer_bytes(work, call, kernel)


def buffer_bytes(work: WorkPartition, call: CallSpec, kernel: Kernel) -> int:
    """Largest memory of a rank in a call, besides its shards of inputs, result and gradients."""
    return round(_WorkMemory(work, call, kernel).most)


def summed_keys(receives: Sequence[Sequence[Transfer]]) -> tuple[slice, int]:
    """(own keys from the first to the last one with received gradients, the most parts that are received of
    one of them), over all steps."""
    edges = np.array(
        [(transfer.start, transfer.end) for step in receives for transfer in step], dtype=np.int64
    ).reshape(-1, 2)
    if not len(edges):
        return slice(0, 0), 0
    first = int(edges[:, 0].min())
    change = np.bincount(edges[:, 0] - first, minlength=int(edges[:, 1].max()) - first + 1)
    change -= np.bincount(edges[:, 1] - first, minlength=len(change))
    return slice(first, int(edges[:, 1].max())), int(np.cumsum(change).max())


@dataclass(frozen=True)
class _Steps:
    """The steps of one rank of a plan, for the heads of one call."""

    plan: Plan
    rank: int
    call: CallSpec
    kernel: Kernel
    is_close: bool
    """masks of steps are built; else the whole mask stands for them"""

    @property
    def queries(self) -> int:
        """Bytes of L queries, in the dtype of the call."""
        return self._num_tokens * self.call.num_q_heads * self.call.head_dim * self.call.elem_bytes

    def keys(self, num_tokens: int) -> int:
        """Bytes of K and V, or of dK and dV, of that many tokens."""
        return 2 * num_tokens * self.call.num_kv_heads * self.call.head_dim * self.call.elem_bytes

    @property
    def results(self) -> int:
        """Bytes of the output; backward, of dQ, dK and dV."""
        return self.queries + (self.keys(self._num_tokens) if self.call.direction == "bwd" else 0)

    def most(self, *, at_once: bool) -> int:
        """Bytes at the worst moment, the results among them, without receive buffers."""
        if at_once:
            return self._at_once()
        moments = self._backward() if self.call.direction == "bwd" else self._forward()
        return max([self.results, *moments])

    def _forward(self) -> Iterator[int]:
        for _, mask in self._looked_at:
            held = self.queries + self._sums + self.kernel.buffer_bytes(self.call, mask)
            if self._sums and not self.kernel.merges:
                held += 2 * self._lse  # of the sum, and of the sum and the step joined
            yield held + (self._copies(mask) if self.kernel.transposes else 0)

    def _backward(self) -> Iterator[int]:
        numbers = self.plan.step_numbers(self.rank)
        most_parts, of_summed = self._received
        for number, mask in self._looked_at:
            later = number != numbers[0]
            with_own = number and self.plan.num_own_kv(self.rank, number)  # dK and dV are those of the kernel
            held = self.queries if with_own else self.results
            held += self.kernel.buffer_bytes(self.call, mask)
            if self._sums and (later or self.kernel.merges):
                held += self._sums
            if number:
                held += self.keys(mask.traits.seqlen_k) + (of_summed if most_parts > 1 else 0)
            if number > 1 and later:
                before = numbers[numbers.index(number) - 1]
                held += self.keys(int(self.plan.step_keys[self.rank, before])) if before else 0
            yield held + (self._copies(mask) if self.kernel.transposes else 0)

    def _at_once(self) -> int:
        """During the kernel, and after it, when its dK and dV are parted among their owners."""
        runs = KeyRuns.of(self.plan, self.rank)
        keys = self.keys(runs.num_keys)
        of_kernel = self.kernel.buffer_bytes(self.call, runs.mask(self.plan, self.rank))
        copies = keys if len(runs.starts) > 1 else 0  # K and V in the order of the sequence
        return self.queries + keys + copies + max(of_kernel, keys)

    @cached_property
    def _looked_at(self) -> list[tuple[int, Mask | LazyMask]]:
        """(number, mask) of the first step and of those with the most pairs."""
        plan = self.plan
        areas = plan.step_areas[self.rank]
        numbers = plan.step_numbers(self.rank)
        largest = sorted(numbers[1:], key=lambda number: -areas[number])
        chosen = sorted([*numbers[:1], *largest[: MOST_LOOKED_AT - 1 if self.is_close else 1]])
        if self.is_close:
            merging = self.kernel.merges
            return [
                (number, active_rows(plan.step(self.rank, number), merging=merging)[2]) for number in chosen
            ]
        whole = plan.partition.mask
        sizes = ((number, int(plan.step_keys[self.rank, number])) for number in chosen)
        traits = replace(whole.traits, seqlen_q=self._num_tokens, num_segments=0, window=None)
        return [(number, part_of(whole, replace(traits, seqlen_k=keys))) for number, keys in sizes]

    @cached_property
    def _sums(self) -> int:
        """Bytes of the sums over steps in float32; 0 if no row is in several."""
        rows = self.plan.step_rows[self.rank]
        several = len(self.plan.step_numbers(self.rank)) > 1
        is_shared = several and (not self.kernel.merges or rows.sum() > self._num_tokens)
        return self.queries // self.call.elem_bytes * SUM_BYTES if is_shared else 0

    @cached_property
    def _received(self) -> tuple[int, int]:
        """(the most parts received of one key's gradients, bytes of their sums)."""
        numbers = range(self.plan.num_steps)
        rows, most_parts = summed_keys([self.plan.dkv_receives(self.rank, number) for number in numbers])
        return most_parts, self.keys(rows.stop - rows.start) // self.call.elem_bytes * SUM_BYTES

    def _copies(self, mask: Mask | LazyMask) -> int:
        """Bytes of copies of a step's operands in the kernel's layout."""
        queries = self.queries * mask.traits.seqlen_q // max(self._num_tokens, 1)
        return queries * (3 if self.call.direction == "bwd" else 1) + self.keys(mask.traits.seqlen_k)

    @property
    def _lse(self) -> int:
        return SUM_BYTES * self._num_tokens * self.call.num_q_heads

    @property
    def _num_tokens(self) -> int:
        return int(self.plan.sharding.num_tokens[self.rank])


class _WorkMemory:
    def __init__(self, work: WorkPartition, call: CallSpec, kernel: Kernel) -> None:
        self._work = work
        self._call = call
        self._kernel = kernel
        self._backward = call.direction == "bwd"
        self._is_small = work.mesh.world <= MOST_LOOKED_AT
        self._head_bytes = call.head_dim * call.elem_bytes  # of one head of one token

    @property
    def most(self) -> float:
        work = self._work
        if work.mesh.heads > 1:
            # all ranks of a head group have as many tokens, so the one with the most heads needs most
            number = max(range(work.mesh.heads), key=self._num_heads)
            return max(self._of_chunks(rank, number) for rank in self._ranks())
        (chunk,) = work.chunks
        share = chunk.heads.ranks[0]
        plan = work.plan_of(work.mask_groups(chunk, 0))
        return self._ring_buffers(plan, len(share.kv)) + max(
            steps.most(at_once=self._backward and work.backward_at_once) - steps.results
            for steps in (
                _Steps(plan, rank, self._call, self._kernel, self._is_small) for rank in self._ranks()
            )
        )

    def _ranks(self) -> range | list[int]:
        """All ranks of a ring, if there are few; else that with the most pairs, which few exceed."""
        plan = self._work.plan
        if self._is_small:
            return range(plan.world)
        return [int(plan.step_areas.sum(axis=1).argmax())]

    def _num_heads(self, number: int) -> int:
        return sum(len(chunk.q[number]) for chunk in self._work.chunks)

    def _ring_buffers(self, plan: Plan, num_kv_heads: int) -> float:
        """Receive buffers of keys and, backward, of two steps' gradients: each as large as on any rank."""
        if plan.world == 1:
            return 0.0
        ranks = range(plan.world) if self._is_small else [int(plan.received_kv.sum(axis=1).argmax())]
        of_ranks = np.array([BufferSchedule(plan, rank, early=True).buffer_keys for rank in ranks])
        num_keys = float(of_ranks.max(axis=0).sum()) if of_ranks.size else 0.0
        if self._backward:
            num_keys += 2 * max(
                (
                    float(np.bincount(home.receiver, home.tokens, plan.world).max())
                    for home in PlanTraffic.of(plan).dkv[1:]
                ),
                default=0.0,
            )
        return 2 * num_keys * num_kv_heads * self._head_bytes

    def _of_chunks(self, rank: int, number: int) -> float:
        """Bytes on a rank of the ring, of that number in its head group."""
        work = self._work
        held = float(work.plan.sharding.num_tokens[rank])
        own = held / work.mesh.heads  # tokens of the rank itself
        at_worst = 0.0
        before = 0.0  # bytes of the last chunk's results, which are still being sent
        known: dict[tuple[range, CallSpec], int] = {}
        for index, chunk in enumerate(work.chunks):
            share = chunk.heads.ranks[number]
            if not share.q:
                continue
            groups = work.mask_groups(chunk, number)
            plan = work.plan_of(groups)
            call = replace(self._call, num_q_heads=len(share.q), num_kv_heads=len(share.local_kv))
            steps = _Steps(plan, rank, call, self._kernel, self._is_small)
            packed = sum(self._packed_heads(later, number) for later in work.chunks[index + 1 :])
            copies = steps.keys(int(held)) if share.expanded else 0
            if (groups, call) not in known:  # chunks of equal heads have equal calls
                known[groups, call] = steps.most(at_once=False)
            of_call = known[groups, call] + copies
            at_worst = max(at_worst, own * packed * self._head_bytes + before + of_call)
            before = steps.results
        return at_worst + self._head_buffers(held, own, number) + self._saved(held, own, number)

    def _packed_heads(self, chunk: HeadChunk, number: int) -> int:
        """Heads of a chunk that are packed for the other ranks: of Q, K and V; backward, of dO."""
        others = [other for other in range(self._work.mesh.heads) if other != number]
        num_q = sum(len(chunk.q[other]) for other in others)
        return num_q if self._backward else num_q + 2 * sum(len(chunk.arriving[other]) for other in others)

    def _head_buffers(self, held: float, own: float, number: int) -> float:
        """Receive buffers of all chunks' heads, of two chunks' results, and of the ring."""
        chunks = self._work.chunks
        arriving = sum(len(chunk.q[number]) + 2 * len(chunk.arriving[number]) for chunk in chunks)
        others = [other for other in range(self._work.mesh.heads) if other != number]
        returning = [
            sum(len(chunk.q[other]) + 2 * len(chunk.leaving[other]) for other in others) for chunk in chunks
        ]
        results = sum(max(returning[parity::2], default=0) for parity in (0, 1))
        most_kv = max(len(chunk.heads.ranks[number].kv) for chunk in chunks)
        of_heads = (held * arriving + own * results) * self._head_bytes
        return of_heads + self._ring_buffers(self._work.plan, most_kv)

    def _saved(self, held: float, own: float, number: int) -> float:
        """Backward: copies of received Q, K and V, and the outputs of all chunks; sums of KV heads that
        several ranks or chunks have."""
        if not self._backward:
            return 0.0
        chunks = self._work.chunks
        kept = sum(2 * len(chunk.q[number]) + 2 * len(chunk.arriving[number]) for chunk in chunks)
        in_float = SUM_BYTES * self._call.head_dim
        summed = 0.0
        if sum(len(heads) for chunk in chunks for heads in chunk.leaving) > self._call.num_kv_heads:
            summed += 2 * own * self._call.num_kv_heads * in_float
        if any(not chunk.leaving[number] for chunk in chunks if chunk.q[number]):
            summed += 2 * held * max(len(chunk.heads.ranks[number].kv) for chunk in chunks) * in_float
        return held * kept * self._head_bytes + summed
