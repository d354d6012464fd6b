"""Video sparse attention's Hopper kernel for blocks of 64, by direct calls of its extension."""

# FastVideo's kernels need not be installed where types are checked
# pyright: reportMissingImports=false

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.core import CallSpec
from longca.kernels.block_listed import BLOCK, HEAD_DIMS, BlockListed
from longca.kernels.block_tables import not_blocks_of
from longca.kernels.contract import Forward, Kernel, Problem, missing_modules, unfit_device
from longca.kernels.sizes import CallSizes

if TYPE_CHECKING:
    import torch

    from longca.masks import LazyMask, Mask, Traits


class Vsa(Kernel):
    label = "VSA"
    family = "sparse"
    needs = ("torch", "triton", "fastvideo_kernel")
    summary = "fastvideo-kernel's ThunderKittens kernel for sm_90: block lists of 64 × 64, bf16"
    url = "https://pypi.org/project/fastvideo-kernel/"
    returns_lse = True
    transposes = True

    def available(self, device_type: str) -> str | None:
        return unfit_device(device_type, "sm_90") or missing_modules(self.needs)

    def supports(self, call: CallSpec, traits: Traits, device_type: str) -> str | None:
        reason = not_blocks_of(traits, BLOCK)
        if reason is not None:
            return reason
        if traits.empty_rows:
            return "it reads past the list of a q-block that sees nothing"
        if call.dtype != "bf16" or call.head_dim not in HEAD_DIMS:
            return "its kernels are built for bf16 and head dims 64 and 128"
        if call.direction == "bwd" and call.num_kv_heads < call.num_q_heads:
            return "its backward has no GQA: it checks for lists by KV head and then reads them by query head"
        return None

    def buffer_bytes(self, call: CallSpec, mask: Mask | LazyMask) -> int:
        """A list for each query head, and backward, which has no GQA, of keys too, with all gradients in
        float32 and a statistic of rows."""
        sizes = CallSizes(call, mask.traits)
        lists = sizes.block_list((BLOCK, BLOCK), call.num_q_heads)
        if not sizes.is_backward:
            return sizes.lse + lists
        return 2 * sizes.lse + 2 * lists + sizes.query_sums + 2 * sizes.key_sums

    def prepare(self, problem: Problem) -> VsaPrepared:
        return VsaPrepared(problem)


class VsaPrepared(BlockListed):
    """Direct calls of the extension over block lists."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        if problem.needs_backward:
            self.notes.append(
                "gradients come in float32; casting them to bf16 is timed, as in the package's own wrapper"
            )

    def lse_from_layout(self, lse: torch.Tensor) -> torch.Tensor:
        """The natural LSE, T × H; the kernel's LSE is −sqrt(D) times that, (1, H, T, 1)."""
        return lse.flatten(2).squeeze(0).transpose(0, 1) * -self.problem.scale

    def lse_to_layout(self, lse_TH: torch.Tensor) -> torch.Tensor:
        return (lse_TH.T.contiguous() / -self.problem.scale)[None, :, :, None]

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Forward:
        from fastvideo_kernel._C import fastvideo_kernel_ops

        out, lse = fastvideo_kernel_ops.block_sparse_fwd(q, k, v, *self._of_queries, self._sizes)
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
        from fastvideo_kernel._C import fastvideo_kernel_ops

        grads = fastvideo_kernel_ops.block_sparse_bwd(q, k, v, out, lse, dout, *self._of_keys, self._sizes)
        dq, dk, dv = (grad.to(q.dtype) for grad in grads)
        return dq, dk, dv
