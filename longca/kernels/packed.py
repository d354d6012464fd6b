"""Attention within packed segments under one window, the only masks of the FlashAttention family and
cuDNN."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from longca.kernels.contract import Forward, Prepared, Problem

if TYPE_CHECKING:
    import torch


class PackedPrepared(Prepared):
    """Layout (1, T, heads, D) for one segment, T × heads × D for several; LSE (…, H, T) float32 in both.

    A mask of segments has no empty rows: its window never hides a token from itself. A single segment may
    have more keys than queries: all see all, or the window is aligned at the bottom right
    (`Traits.tail_window`).

    Args:
        always_packed: use T × heads × D and segment bounds also for one segment, for kernels that support
            only this layout.
    """

    def __init__(self, problem: Problem, always_packed: bool = False) -> None:
        super().__init__(problem)
        from longca.lowering.varlen import rectangle, varlen

        start = time.perf_counter()
        traits = problem.mask.traits
        packed = (rectangle if traits.full or traits.tail_window else varlen)(problem.mask)
        self.window = packed.window
        """(left, right) of j - i; -1 for no bound"""
        self.causal = packed.window == (-1, 0)
        self.max_seqlen = packed.max_seqlen
        self.cu_seqlens: torch.Tensor | None = None
        """int32 (segments + 1,); None in the layout of one segment"""
        if always_packed or len(packed.cu_seqlens) > 2:
            import torch

            self.cu_seqlens = torch.from_numpy(packed.cu_seqlens).to(problem.device)
            self.costs["metadata_bytes"] = packed.cu_seqlens.nbytes
        self.costs["plan_ms"] = (time.perf_counter() - start) * 1e3

    def to_layout(self, x_THD: torch.Tensor) -> torch.Tensor:
        return x_THD.contiguous() if self.cu_seqlens is not None else x_THD.contiguous().unsqueeze(0)

    def from_layout(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.cu_seqlens is not None else x.squeeze(0)

    def lse_from_layout(self, lse: torch.Tensor) -> torch.Tensor:
        return lse.reshape(self.problem.num_q_heads, -1).T

    def lse_to_layout(self, lse_TH: torch.Tensor) -> torch.Tensor:
        lse = lse_TH.T.contiguous()
        return lse if self.cu_seqlens is not None else lse.unsqueeze(0)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Forward:
        out, lse = self.attend(q, k, v)
        return Forward(out, lse, saved=(q, k, v) if self.problem.needs_backward else None)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(out, lse) of the kernel."""
        raise NotImplementedError
