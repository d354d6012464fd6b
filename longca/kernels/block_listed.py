"""The base class for kernels of the video sparse attention package: their index lists and layout."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from longca.kernels.block_tables import block_tables, split_blocks
from longca.kernels.contract import Prepared, Problem
from longca.kernels.first_call import wait

if TYPE_CHECKING:
    import torch

BLOCK = 64
HEAD_DIMS = (64, 128)


class BlockListed(Prepared):
    """Layout (1, heads, T, D). Every query head has separate lists, even if heads share a mask."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        import torch

        start = time.perf_counter()
        mask = split_blocks(problem.mask, BLOCK)
        if mask is not problem.mask:
            self.notes.append(f"blocks were split into blocks of {BLOCK}, the only size it has")
        tables = block_tables(mask, problem.device, problem.num_q_heads, of_keys=problem.needs_backward)
        self._of_queries = tables.q_to_k.unsqueeze(0), tables.q_to_k_counts.unsqueeze(0)
        self._of_keys = tables.k_to_q.unsqueeze(0), tables.k_to_q_counts.unsqueeze(0)
        self._sizes = torch.full((mask.seqlen_k // BLOCK,), BLOCK, dtype=torch.int32, device=problem.device)
        wait(problem.device)
        self.costs["plan_ms"] = (time.perf_counter() - start) * 1e3
        self.costs["metadata_bytes"] = tables.num_bytes + 4 * len(self._sizes)

    def to_layout(self, x_THD: torch.Tensor) -> torch.Tensor:
        return x_THD.transpose(0, 1).contiguous().unsqueeze(0)

    def from_layout(self, x: torch.Tensor) -> torch.Tensor:
        return x.squeeze(0).transpose(0, 1)
