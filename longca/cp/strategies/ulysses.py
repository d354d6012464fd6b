"""Ulysses: from tokens to heads in one all-to-all, attention over the whole sequence, and back (arXiv 2309.14509).

Every rank runs the mask as it is, on its heads: all masks are balanced alike. Tokens are in contiguous shards, and neither
lengths, heads nor ranks must divide each other: the all-to-alls have uneven pieces, KV heads go to every rank that needs
them, and a rank without heads only takes part in the exchanges.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
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
        tokens = even_ranges(problem.mask.seqlen_q, comm.world)
        mine = tokens[comm.rank]
        super().__init__(problem, Shard(np.arange(mine.start, mine.stop, dtype=np.int64)))
        self._plan = plan_heads(problem.num_q_heads, problem.num_kv_heads, comm.world)
        self._share = self._plan.ranks[comm.rank]
        self._exchange = HeadExchange(comm, tokens, problem.head_dim)
        self._copies = self._prepare_copies(comm)
        self._kernel = self._prepare_kernel(problem, kernel, comm.rank)
        self.costs |= _formula_bytes(problem, comm.world)

    def _prepare_copies(self, comm: Comm) -> torch.Tensor | None:
        """Where the kernel needs KV heads more than once: which."""
        share = self._share
        if not share.expanded:
            return None
        import torch

        self.notes.append(f"rank {comm.rank}: its {len(share.q)} query heads cut through KV groups, so the kernel call gets "
                          f"{len(share.local_kv)} KV heads, copied from {len(share.kv)} inside the timed call")
        return torch.tensor(share.local_kv, device=comm.device)

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
            local, out = None, q  # empty
        else:
            to_layout = partial(_to_layout, self._kernel)
            local = self._kernel.forward(to_layout(q), to_layout(self._expand(k)), to_layout(self._expand(v)))
            out = self._kernel.from_layout(local.out)
        (blocks,) = self._exchange.to_tokens((out,), (self._plan.q,))
        # no LSE: it is of this rank's heads, and to bring it home would be traffic that attention does not need
        return Forward(join_heads(blocks, self._plan.q), saved=local)

    def backward(self, forward: Forward, dout: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        (dout,) = self._exchange.to_heads((dout,), (self._plan.q,))
        if self._kernel is None:
            grads = (dout, dout, dout)  # empty
        else:
            local = self._kernel.backward(forward.saved, _to_layout(self._kernel, dout))
            dq, dk, dv = (self._kernel.from_layout(grad) for grad in local)
            grads = (dq, self._fold(dk), self._fold(dv))
        shares = (self._plan.q, self._plan.kv, self._plan.kv)
        blocks = self._exchange.to_tokens(grads, shares)
        dq, dk, dv = (join_heads(of_ranks, share) for of_ranks, share in zip(blocks, shares, strict=True))
        return dq, dk, dv

    def _expand(self, x_TgD: torch.Tensor) -> torch.Tensor:
        return x_TgD if self._copies is None else x_TgD.index_select(1, self._copies)

    def _fold(self, grad: torch.Tensor) -> torch.Tensor:
        """Gradients of copied KV heads, summed in float32 over the copies of each."""
        if self._copies is None:
            return grad
        wide = grad.float()
        return wide.new_zeros(wide.shape[0], len(self._share.kv), wide.shape[2]).index_add_(1, self._copies, wide).to(grad.dtype)


def _to_layout(kernel: Prepared, x_ThD: torch.Tensor) -> torch.Tensor:
    # what was received are views of rows of q, k and v: a kernel that keeps this layout gets a contiguous one all the same
    return kernel.to_layout(x_ThD).contiguous()


def _formula_bytes(problem: Problem, world: int) -> dict[str, float]:
    """Bytes that a rank sends in one direction, forward or backward, by the books.

    `formula_bytes` is Table 3 of arXiv 2510.17896: (N−1)/N² · T·(Hkv + Hq)·D·2 elements. It leaves out that more ranks
    than KV heads means N copies of KV heads in all: `formula_replicated_bytes` puts max(Hkv, N) for Hkv.
    """
    element = problem.dtype.itemsize * problem.mask.seqlen_q * problem.head_dim * 2 * (world - 1) / world**2
    return {"formula_bytes": element * (problem.num_kv_heads + problem.num_q_heads),
            "formula_replicated_bytes": element * (max(problem.num_kv_heads, world) + problem.num_q_heads)}
