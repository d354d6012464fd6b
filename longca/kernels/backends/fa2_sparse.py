"""FlashAttention-2 over block lists: this project's own Triton implementation, since PyPI has none."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from longca.core import CallSpec
from longca.kernels.contract import Forward, Kernel, Prepared, Problem, missing_compiler, missing_modules
from longca.kernels.first_call import first_call_ms, wait
from longca.kernels.sizes import CallSizes

if TYPE_CHECKING:
    import torch

    from longca.masks import LazyMask, Mask, Traits

SMALLEST_TILE = 16  # smallest size of a matmul in Triton


class Fa2Sparse(Kernel):
    label = "FA2-Sparse (own)"
    family = "sparse"
    needs = ("torch", "triton")
    summary = "Own Triton re-implementation of FlashAttention-2 over block lists; not the kernel of a package"
    url = "https://arxiv.org/abs/2307.08691"
    returns_lse = True

    def available(self, device_type: str) -> str | None:
        if device_type != "cuda":
            return "Triton compiles for GPUs only"
        return missing_modules(self.needs) or missing_compiler(device_type)

    def supports(self, call: CallSpec, traits: Traits, device_type: str) -> str | None:
        if not traits.is_block_grid:
            return "it takes block masks only"
        if traits.block_size is None:
            return "its blocks are all of one size"
        if any(block % SMALLEST_TILE for block in traits.block_size):
            return f"its blocks are multiples of {SMALLEST_TILE}"
        if call.dtype == "fp32":
            return "it is written for bf16 and fp16"
        if call.head_dim not in (64, 128):
            return "it is written for head dims 64 and 128"
        return None

    def buffer_bytes(self, call: CallSpec, mask: Mask | LazyMask) -> int:
        """Block lists, of keys too backward, and two more statistics of rows there. Gradients are written
        once."""
        traits = mask.traits
        sizes = CallSizes(call, traits)
        lists = sizes.block_list(traits.block_size or (SMALLEST_TILE, SMALLEST_TILE), traits.num_groups)
        return 3 * sizes.lse + 2 * lists if sizes.is_backward else sizes.lse + lists

    def prepare(self, problem: Problem) -> Fa2SparsePrepared:
        return Fa2SparsePrepared(problem)


class Fa2SparsePrepared(Prepared):
    """Layout T × heads × D, as in FlashAttention. There is one list for each head group, shared by all query
    heads of a KV head."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        from longca.kernels.block_tables import block_tables
        from longca.ops import sparse_tuning

        start = time.perf_counter()
        self._tables = block_tables(problem.mask, problem.device, of_keys=problem.needs_backward)
        self._blocks = self._tables.block_q, self._tables.block_k
        self._tuning = sparse_tuning(problem.head_dim, self._blocks)
        wait(problem.device)
        self.costs["plan_ms"] = (time.perf_counter() - start) * 1e3
        self.costs["metadata_bytes"] = self._tables.num_bytes
        self.notes.append(
            "the project's own re-implementation in Triton: not the speed of the study's FA2-Sparse"
        )
        if problem.records_costs:
            self.costs["compile_ms"] = first_call_ms(self)

    def to_layout(self, x_THD: torch.Tensor) -> torch.Tensor:
        return x_THD.contiguous()

    def lse_from_layout(self, lse: torch.Tensor) -> torch.Tensor:
        return lse.transpose(0, 1)

    def lse_to_layout(self, lse_TH: torch.Tensor) -> torch.Tensor:
        return lse_TH.T.contiguous()

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Forward:
        from longca.ops import sparse_forward

        tables = self._tables
        out, lse = sparse_forward(
            q,
            k,
            v,
            tables.q_to_k,
            tables.q_to_k_counts,
            self._blocks,
            self.problem.scale,
            self._tuning.forward,
        )
        return Forward(out, lse, saved=(q, k, v) if self.problem.needs_backward else None)

    def raw_backward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        dout: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(dq, dk, dv) from an output and LSE that may cover more keys than these, as context parallelism
        needs.

        Args:
            lse: (H, T) float32, contiguous.
        """
        from longca.ops import sparse_backward

        tables = self._tables
        return sparse_backward(
            q,
            k,
            v,
            out,
            lse,
            dout,
            (tables.q_to_k, tables.q_to_k_counts),
            (tables.k_to_q, tables.k_to_q_counts),
            self._blocks,
            self.problem.scale,
            self._tuning,
        )
