"""Ulysses: from tokens to heads in one all-to-all, attention over the whole sequence, and back (arXiv 2309.14509).

Every rank runs the mask as it is, on its heads: all masks are balanced alike. Tokens are in contiguous shards, and neither lengths,
heads nor ranks must divide each other: the all-to-alls have uneven pieces, KV heads go to every rank that needs them, and
a rank without heads only takes part in the exchanges.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from longca.core.cell import Cell
from longca.cp.contract import PreparedStrategy, Shard, Strategy
from longca.cp.exchange import HeadExchange, join_heads
from longca.cp.heads import plan_heads
from longca.cp.split import even_ranges
from longca.kernels.contract import Forward

if TYPE_CHECKING:
    import torch

    from longca.cp.comm import Comm
    from longca.kernels.contract import Kernel, Prepared, Problem
    from longca.masks.traits import Traits


class Ulysses(Strategy):
    label = "Ulysses"
    summary = "All-to-all from tokens to heads and back; each rank runs the whole sequence on its heads"
    url = "https://arxiv.org/abs/2309.14509"

    def supports(self, cell: Cell, traits: Traits) -> str | None:
        plan = plan_heads(cell.num_q_heads, cell.num_kv_heads, cell.world)
        cut = [rank for rank in range(cell.world) if plan.mask_groups(rank, traits.num_groups) is None]
        if cut:
            return (f"the mask differs among {traits.num_groups} head groups, and over {cell.world} ranks the "
                    f"heads of rank {cut[0]} are no whole number of them")
        return None

    def local_cells(self, cell: Cell, traits: Traits) -> list[tuple[Cell, Traits]]:
        plan = plan_heads(cell.num_q_heads, cell.num_kv_heads, cell.world)
        found: dict[Cell, Traits] = {}
        for rank, share in enumerate(plan.ranks):
            groups = plan.mask_groups(rank, traits.num_groups)
            if share.q and groups is not None:
                local = {"kind": "kernel", "strategy": None, "world": 1, "num_q_heads": len(share.q),
                         "num_kv_heads": len(share.local_kv)}
                found[Cell(**cell.model_dump() | local)] = replace(traits, num_groups=len(groups))
        return list(found.items())

    def prepare(self, problem: Problem, kernel: Kernel, comm: Comm) -> PreparedUlysses:
        return PreparedUlysses(problem, kernel, comm)


class PreparedUlysses(PreparedStrategy):
    """One rank's part. L tokens of this rank, T of all; h query heads and g KV heads on this rank."""

    def __init__(self, problem: Problem, kernel: Kernel, comm: Comm) -> None:
        start = time.perf_counter()
        tokens = even_ranges(problem.mask.seqlen_q, comm.world)
        mine = tokens[comm.rank]
        super().__init__(problem, Shard(np.arange(mine.start, mine.stop, dtype=np.int64)))
        self._plan = plan_heads(problem.num_q_heads, problem.num_kv_heads, comm.world)
        self._share = self._plan.ranks[comm.rank]
        self._exchange = HeadExchange(comm, tokens, problem.head_dim)
        plan_ms = (time.perf_counter() - start) * 1e3
        self._kernel = self._prepare_kernel(problem, kernel, comm.rank)
        self.costs |= {"plan_ms": plan_ms + self.costs.get("plan_ms", 0.0), **_formula_bytes(problem, comm.world)}
        if self._share.expanded:
            self.notes.append(f"rank {comm.rank}: its {len(self._share.q)} query heads cut through KV groups, so {len(self._share.kv)} "
                              f"KV heads stand for {len(self._share.local_kv)} in the kernel call; the copies are timed")

    def _prepare_kernel(self, problem: Problem, kernel: Kernel, rank: int) -> Prepared | None:
        groups = self._plan.mask_groups(rank, problem.mask.num_groups)
        assert groups is not None, "`supports` has been asked"
        if not self._share.q:
            self.notes.append(f"rank {rank} has no heads")
            return None
        prepared = kernel.prepare(replace(problem, mask=problem.mask.select_groups(groups.start, groups.stop),
                                          num_q_heads=len(self._share.q), num_kv_heads=len(self._share.local_kv)))
        self.costs |= prepared.costs
        self.notes += prepared.notes
        return prepared

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Forward:
        q, k, v = self._exchange.to_heads((q, k, v), (self._plan.q, self._plan.kv, self._plan.kv))
        if self._kernel is None:
            result, out = None, q
        else:
            result = self._kernel.forward(self._to_layout(q), self._to_layout(self._expand(k)), self._to_layout(self._expand(v)))
            out = self._from_layout(result.out)
        blocks, = self._exchange.to_tokens((out,), (self._plan.q,))
        # no LSE: the kernels' own are of heads, and bringing them home would be traffic that nobody asked for
        return Forward(join_heads(blocks, self._plan.q), saved=result)

    def backward(self, forward: Forward, dout: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        dout, = self._exchange.to_heads((dout,), (self._plan.q,))
        if self._kernel is None:
            grads = (dout, dout, dout)  # all empty
        else:
            dq, dk, dv = map(self._from_layout, self._kernel.backward(forward.saved, self._to_layout(dout)))
            grads = dq, self._fold(dk), self._fold(dv)
        shares = self._plan.q, self._plan.kv, self._plan.kv
        dq, dk, dv = (join_heads(blocks, share) for blocks, share in zip(self._exchange.to_tokens(grads, shares), shares, strict=True))
        return dq, dk, dv

    def _to_layout(self, x_ThD: torch.Tensor) -> torch.Tensor:
        # the tensors received are views of rows of q, k and v: a kernel that keeps this layout still gets a contiguous one
        return self._kernel.to_layout(x_ThD).contiguous()

    def _from_layout(self, x: torch.Tensor) -> torch.Tensor:
        return self._kernel.from_layout(x).to(self.problem.dtype)

    def _expand(self, x_TgD: torch.Tensor) -> torch.Tensor:
        return x_TgD[:, list(self._share.local_kv)] if self._share.expanded else x_TgD

    def _fold(self, grad_ThD: torch.Tensor) -> torch.Tensor:
        """Gradients of expanded KV heads, summed in float32 over the copies of each."""
        if not self._share.expanded:
            return grad_ThD
        import torch

        index = torch.tensor(self._share.local_kv, device=grad_ThD.device)
        folded = torch.zeros(grad_ThD.shape[0], len(self._share.kv), grad_ThD.shape[2], device=grad_ThD.device)
        return folded.index_add_(1, index, grad_ThD.float()).to(grad_ThD.dtype)


def _formula_bytes(problem: Problem, world: int) -> dict[str, float]:
    """Bytes that a rank sends in one direction, forward or backward, by the books.

    `formula_bytes` is Table 3 of arXiv 2510.17896: (N−1)/N² · T·(Hkv + Hq)·D·2 elements. It leaves out that more ranks
    than KV heads means N copies of KV heads in all: `formula_replicated_bytes` puts max(Hkv, N) for Hkv.
    """
    element = problem.dtype.itemsize * problem.mask.seqlen_q * problem.head_dim * 2 * (world - 1) / world**2
    return {"formula_bytes": element * (problem.num_kv_heads + problem.num_q_heads),
            "formula_replicated_bytes": element * (max(problem.num_kv_heads, world) + problem.num_q_heads)}
