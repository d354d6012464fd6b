"""The study's ring all-gather, re-implemented from its description: an all-gather of all keys, then two
kernel calls.

Every rank first gathers the keys and values of all ranks, with padding. Then each half of its queries attends
to the preceding keys. Backward gathers again, adds the gradients of both halves in the dtype of the inputs
and reduce-scatters them in this dtype. There is no overlap.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from longca.core import CallSpec
from longca.cp.baselines.collectives import all_gather, reduce_scatter
from longca.cp.baselines.paper_style import (
    CAUSAL,
    HeldTokens,
    PaperStyle,
    PaperStylePrepared,
    add_rows,
    gathered_mask,
    rectangle,
)
from longca.cp.runtime.accumulate import LocalCall
from longca.kernels import CallSizes, Forward

if TYPE_CHECKING:
    import torch

    from longca.cp.comm.backend import Comm
    from longca.cp.contract import LocalCalls
    from longca.kernels import Kernel, Problem
    from longca.masks import LazyMask, Mask, Traits


class PaperStyleAllgather(PaperStyle):
    label = "All-Gather, in the style of the paper"
    summary = (
        "The study's schedule done again: documents padded to 2P, an exposed gather of all keys, bf16 "
        "sums of gradients"
    )

    def own_calls(self, traits: Traits, call: CallSpec, world: int) -> LocalCalls:
        half = max(traits.seqlen_q // (2 * world), 1)
        return [(call, rectangle(traits, half, traits.seqlen_q, causal=traits.window == CAUSAL))]

    def buffer_bytes(
        self, mask: Mask | LazyMask, call: CallSpec, world: int, kernel: Kernel, device_type: str
    ) -> int:
        """All keys, and those of a half's documents selected; operands and results of the half, and results
        of the half before, which are dropped when the next are there. Backward, sums of all keys' gradients
        as well. Of the first rank, whose second half sees the most keys."""
        documents, causal = self.documents(mask, world)
        halves = [gathered_mask(documents, documents.held(0, (number,)), causal=causal) for number in (0, 1)]
        before, half = (CallSizes(call, half.traits) for half in halves)
        padded = replace(half.traits, seqlen_k=world * documents.num_rows)
        gathered = 2 * CallSizes(call, padded).keys
        of_kernel = kernel.buffer_bytes(call, halves[1])
        if call.direction == "fwd":
            return gathered + 2 * half.keys + 2 * half.queries + before.queries + half.lse + of_kernel
        results = before.queries + 2 * before.keys + half.queries + 2 * half.keys
        own = 2 * half.keys * documents.num_rows // max(half.traits.seqlen_k, 1)  # dK and dV come at the end
        return 2 * gathered + 2 * half.keys + 3 * half.queries + half.lse + results + of_kernel - own

    def prepare(self, problem: Problem, kernel: Kernel, comm: Comm) -> PreparedAllgather:
        return PreparedAllgather(problem, kernel, comm)


@dataclass(frozen=True, eq=False)
class _Half:
    """One kernel call: a chunk of each document with the keys of that document. Every query is in one call,
    with all its keys."""

    queries: torch.Tensor  # indices into the rank's tokens
    keys: torch.Tensor  # rows of all ranks' buffers: the keys, then the values
    call: LocalCall


class PreparedAllgather(PaperStylePrepared):
    def __init__(self, problem: Problem, kernel: Kernel, comm: Comm) -> None:
        super().__init__(problem, kernel, comm)
        held = [self.documents.held(comm.rank, (number,)) for number in (0, 1)]
        self._halves = [self._half(half) for half in held if len(half.positions)]
        gathers = 2 if problem.needs_backward else 1  # of keys and values, or one plus a reduce-scatter
        self.costs["formula_bytes"] = gathers * 2 * self.shard_bytes * (comm.world - 1)

    def _half(self, held: HeldTokens) -> _Half:
        num_keys = self.documents.num_keys(held, causal=self.causal)
        rank, row = self.documents.rows_of(np.arange(len(num_keys)), num_keys)
        row = rank * 2 * self.documents.num_rows + row
        mask = gathered_mask(self.documents, held, causal=self.causal)
        return _Half(
            self.on_device(np.searchsorted(self.mine.rows, held.rows)), self.both(row), self.call(mask)
        )

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Forward:
        import torch

        gathered = self._gather(k, v)
        out = torch.empty_like(q)
        lse = q.new_empty(q.shape[:2], dtype=torch.float32)
        for half in self._halves:
            part, part_lse = half.call.forward(q.index_select(0, half.queries), *self._keys(half, gathered))
            out.index_copy_(0, half.queries, part)
            lse.index_copy_(0, half.queries, part_lse)
        return Forward(out, lse, saved=(q, k, v) if self.problem.needs_backward else None)

    def backward(
        self, forward: Forward, dout: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        import torch

        q, k, v = forward.saved
        assert forward.lse is not None
        gathered = self._gather(k, v)
        dq = torch.empty_like(q)
        dkv = torch.zeros_like(gathered)
        for half in self._halves:
            q_half, out, lse, dout_half = (
                x.index_select(0, half.queries) for x in (q, forward.out, forward.lse, dout)
            )
            dq_half, *dkv_half = half.call.backward(q_half, *self._keys(half, gathered), out, lse, dout_half)
            dq.index_copy_(0, half.queries, dq_half)
            add_rows(dkv, half.keys, torch.cat(dkv_half))
        dk, dv = self.unpad(reduce_scatter(self.comm, dkv.view(self.comm.world, -1, *dkv.shape[1:])))
        return dq, dk, dv

    def _gather(self, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """The concatenated buffers of all ranks."""
        return all_gather(self.comm, self.pad(k, v)).flatten(0, 1)

    def _keys(self, half: _Half, gathered: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        k, v = gathered.index_select(0, half.keys).chunk(2)
        return k, v
