"""Video sparse attention's Triton kernels, the fallback of its package without a compiled kernel."""

# FastVideo's kernels need not be installed where types are checked
# pyright: reportMissingImports=false

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from longca.core import CallSpec
from longca.kernels.block_listed import BLOCK, HEAD_DIMS, BlockListed
from longca.kernels.block_tables import not_blocks_of
from longca.kernels.contract import Forward, Kernel, Problem, missing_compiler, missing_modules
from longca.kernels.first_call import first_call_ms
from longca.kernels.sizes import CallSizes

if TYPE_CHECKING:
    import torch

    from longca.masks import LazyMask, Mask, Traits

MOST_ELEMENTS = 1 << 31  # elements of q: its backward addresses the output with 32 bits


class VsaTriton(Kernel):
    label = "VSA (Triton)"
    family = "sparse"
    needs = ("torch", "triton", "fastvideo_kernel")
    summary = "The Triton kernels inside fastvideo-kernel: block lists of 64 × 64, bf16, autotuned"
    url = "https://pypi.org/project/fastvideo-kernel/"
    returns_lse = True
    transposes = True

    def available(self, device_type: str) -> str | None:
        if device_type != "cuda":
            return "Triton compiles for GPUs only"
        return missing_modules(self.needs) or missing_compiler(device_type)

    def supports(self, call: CallSpec, traits: Traits, device_type: str) -> str | None:
        reason = not_blocks_of(traits, BLOCK)
        if reason is not None:
            return reason
        if call.dtype != "bf16" or call.head_dim not in HEAD_DIMS:
            return "it rounds probabilities to bf16, and its package runs it at head dims 64 and 128"
        if call.num_kv_heads < call.num_q_heads:
            return "it has no GQA: queries and keys have as many heads"
        if call.direction == "bwd" and call.num_q_heads * traits.seqlen_q * call.head_dim > MOST_ELEMENTS:
            return "its backward addresses no more than 2³¹ elements"
        return None

    def buffer_bytes(self, call: CallSpec, mask: Mask | LazyMask) -> int:
        """A list for each query head, and backward of keys too, with the product of out and dout and the row
        sums of it."""
        sizes = CallSizes(call, mask.traits)
        lists = sizes.block_list((BLOCK, BLOCK), call.num_q_heads)
        if not sizes.is_backward:
            return sizes.lse + lists
        return 2 * sizes.lse + 2 * lists + sizes.queries

    def prepare(self, problem: Problem) -> VsaTritonPrepared:
        return VsaTritonPrepared(problem)


class VsaTritonPrepared(BlockListed):
    """Triton kernels over block lists, autotuned for this length on inputs of zeros."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        if problem.records_costs:
            self.costs["compile_ms"] = first_call_ms(self)

    def lse_from_layout(self, lse: torch.Tensor) -> torch.Tensor:
        """The natural LSE, T × H; the kernel's LSE has base 2, (1, H, T)."""
        return lse.squeeze(0).transpose(0, 1) * math.log(2)

    def lse_to_layout(self, lse_TH: torch.Tensor) -> torch.Tensor:
        return (lse_TH.T.contiguous() / math.log(2)).unsqueeze(0)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Forward:
        from fastvideo_kernel.triton_kernels.block_sparse_attn_triton import triton_block_sparse_attn_forward

        out, lse = triton_block_sparse_attn_forward(q, k, v, *self._of_queries, self._sizes)
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
        from fastvideo_kernel.triton_kernels.block_sparse_attn_triton import triton_block_sparse_attn_backward

        return triton_block_sparse_attn_backward(
            dout, q, k, v, out, lse, *self._of_queries, *self._of_keys, self._sizes
        )
