"""The study's ring, re-implemented from its description: keys circulate in P steps, and everything is stored.

The keys of a step arrive while the previous step is computed. Each step's keys stay in a separate buffer.
Each step's output is stored until the end, when all outputs are merged. In causal documents, queries attend
to the first half of the keys of earlier ranks; only the second half of the queries sees keys of later ranks.
Backward circulates the keys again, followed by their gradients, to which every rank adds in the dtype of the
inputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from longca.core import CallSpec
from longca.cp.baselines.collectives import ring_shift
from longca.cp.baselines.paper_style import (
    BOTH,
    CAUSAL,
    PaperStyle,
    PaperStylePrepared,
    add_rows,
    causal_mask,
    full_mask,
    rectangle,
)
from longca.cp.runtime.accumulate import LocalCall, merge, no_keys
from longca.kernels import CallSizes, Forward

if TYPE_CHECKING:
    import torch

    from longca.cp.comm.backend import Comm
    from longca.cp.contract import LocalCalls
    from longca.kernels import Kernel, Problem
    from longca.masks import LazyMask, Mask, Traits

FIRST = (0,)
SECOND = (1,)


class PaperStyleRing(PaperStyle):
    label = "Ring P2P, in the style of the paper"
    summary = (
        "The study's schedule done again: documents padded to 2P, P key buffers and P partial "
        "outputs, bf16 ring of gradients"
    )

    def own_calls(self, traits: Traits, call: CallSpec, world: int) -> LocalCalls:
        seqlen = traits.seqlen_q
        share = max(seqlen // world, 1)
        half = max(seqlen // (2 * world), 1)
        own = call, replace(traits, seqlen_q=share, seqlen_k=share)
        if world == 1:
            return [own]
        # padding is removed before each call
        ragged = traits.num_segments > 1 or seqlen % (2 * world) > 0
        shapes = [(share, half), (half, share)] if traits.window == CAUSAL else [(share, share + ragged)]
        return [own, *((call, replace(rectangle(traits, *shape), empty_rows=ragged)) for shape in shapes)]

    def buffer_bytes(
        self, mask: Mask | LazyMask, call: CallSpec, world: int, kernel: Kernel, device_type: str
    ) -> int:
        """Forward, at the end: the keys of all ranks, the outputs of all steps, the merged output in float32,
        and its rows of this step and of the one before. Backward, in the first step: the rank's own keys,
        those that arrive, sums of gradients, dQ in float32, and operands of a step."""
        documents, causal = self.documents(mask, world)
        lengths = documents.held(0).lengths
        own = (causal_mask if causal else full_mask)(lengths, lengths)
        sizes = CallSizes(call, own.traits)
        keys = 2 * CallSizes(call, replace(own.traits, seqlen_k=documents.num_rows)).keys
        in_float = sizes.query_sums + sizes.lse
        if call.direction == "fwd":
            steps = world * (keys + sizes.queries + sizes.lse)
            return steps + (1 + min(world, 2)) * in_float - sizes.queries  # the output comes after these
        kept = (
            1 + (world > 1) + 1 + (world > 2 and not causal)
        )  # keys, those of the next step, sums, arriving sums
        operands = 3 * sizes.queries + 2 * sizes.keys + sizes.lse
        return kept * keys + sizes.query_sums + operands + kernel.buffer_bytes(call, own)

    def prepare(self, problem: Problem, kernel: Kernel, comm: Comm) -> PreparedRing:
        return PreparedRing(problem, kernel, comm)


@dataclass(frozen=True, eq=False)
class _Step:
    """One kernel call: queries of this rank, and the keys of the rank that many steps before it."""

    queries: torch.Tensor  # indices into the rank's tokens
    keys: torch.Tensor  # rows of the other rank's buffer: the keys, then the values
    call: LocalCall


class PreparedRing(PaperStylePrepared):
    def __init__(self, problem: Problem, kernel: Kernel, comm: Comm) -> None:
        super().__init__(problem, kernel, comm)
        self._steps = [self._step(number) for number in range(comm.world)]
        # the last hop returns the gradients
        hops = comm.world - 1 + (comm.world if problem.needs_backward and comm.world > 1 else 0)
        self.costs["formula_bytes"] = hops * 2 * self.shard_bytes

    def _step(self, number: int) -> _Step | None:
        """None if no pair is visible."""
        before = number <= self.comm.rank
        queries = self.documents.held(self.comm.rank, SECOND if self.causal and not before else BOTH)
        keys = self.documents.held(
            (self.comm.rank - number) % self.comm.world, FIRST if self.causal and before and number else BOTH
        )
        mask = (causal_mask if self.causal and not number else full_mask)(queries.lengths, keys.lengths)
        if not mask.area:
            return None
        return _Step(
            self.on_device(np.searchsorted(self.mine.rows, queries.rows)),
            self.both(keys.rows),
            self.call(mask),
        )

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Forward:
        buffers = [self.pad(k, v)]
        parts = []
        for number, step in enumerate(self._steps):
            arrived = ring_shift(self.comm, buffers[number]) if number + 1 < self.comm.world else None
            if step is not None:
                parts.append(
                    (
                        step,
                        *step.call.forward(
                            q.index_select(0, step.queries), *self._keys(step, buffers[number])
                        ),
                    )
                )
            if arrived is not None:
                buffers.append(arrived())
        out, lse = no_keys(q)
        for step, part, part_lse in parts:
            rows = out.index_select(0, step.queries), lse.index_select(0, step.queries)
            merge(*rows, part, part_lse)
            for whole, merged in zip((out, lse), rows, strict=True):
                whole.index_copy_(0, step.queries, merged)
        return Forward(out.to(q.dtype), lse, saved=(q, k, v) if self.problem.needs_backward else None)

    def backward(
        self, forward: Forward, dout: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        import torch

        q, k, v = forward.saved
        assert forward.lse is not None
        buffer = self.pad(k, v)
        dq = torch.zeros_like(q, dtype=torch.float32)
        dkv = torch.zeros_like(buffer)
        for number, step in enumerate(self._steps):
            keys_arrived = ring_shift(self.comm, buffer) if number + 1 < self.comm.world else None
            # of the keys that the next rank uses now
            sums_arrived = ring_shift(self.comm, dkv) if number else None
            grads = None
            if step is not None:
                operands = (x.index_select(0, step.queries) for x in (forward.out, forward.lse, dout))
                grads = step.call.backward(
                    q.index_select(0, step.queries), *self._keys(step, buffer), *operands
                )
            if sums_arrived is not None:
                dkv = sums_arrived()
            if step is not None and grads is not None:
                add_rows(dq, step.queries, grads[0])
                add_rows(dkv, step.keys, torch.cat(grads[1:]))
            if keys_arrived is not None:
                buffer = keys_arrived()
        if self.comm.world > 1:
            dkv = ring_shift(self.comm, dkv)()
        return dq.to(q.dtype), *self.unpad(dkv)

    def _keys(self, step: _Step, buffer: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        k, v = buffer.index_select(0, step.keys).chunk(2)
        return k, v
