"""torch's copy of FlashAttention-2, called directly instead of through SDPA."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.core import CallSpec
from longca.kernels.contract import Kernel, Problem, unfit_device, unfit_mask
from longca.kernels.packed import PackedPrepared
from longca.kernels.sizes import ROUNDED_ROWS, CallSizes

if TYPE_CHECKING:
    import torch

    from longca.masks import LazyMask, Mask, Traits

MAX_HEAD_DIM = 256


class TorchFlash(Kernel):
    label = "FA2 (torch)"
    summary = "torch's own copy of FlashAttention-2 by its aten operators: causal, windows, packed documents"
    url = "https://docs.pytorch.org/docs/stable/generated/torch.nn.attention.varlen.varlen_attn.html"
    returns_lse = True

    def available(self, device_type: str) -> str | None:
        return unfit_device(device_type, "sm_80+")

    def supports(self, call: CallSpec, traits: Traits, device_type: str) -> str | None:
        if call.dtype not in ("bf16", "fp16"):
            return "it computes in bf16 and fp16 only"
        if call.head_dim % 8 or call.head_dim > MAX_HEAD_DIM:
            return f"it takes head dims that are multiples of 8, up to {MAX_HEAD_DIM}"
        return unfit_mask(traits, tails=True)

    def buffer_bytes(self, call: CallSpec, mask: Mask | LazyMask) -> int:
        sizes = CallSizes(call, mask.traits)
        return sizes.wide_sums(ROUNDED_ROWS) if sizes.is_backward else sizes.lse

    def prepare(self, problem: Problem) -> TorchFlashPrepared:
        return TorchFlashPrepared(problem)


class TorchFlashPrepared(PackedPrepared):
    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        import torch

        # state of the unused dropout
        self._no_random = torch.zeros(2, dtype=torch.uint64, device=problem.device)
        self._unused = torch.empty(0, device=problem.device)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        import torch

        left, right = self.window
        out, lse, *_ = torch.ops.aten._flash_attention_forward(
            q,
            k,
            v,
            self.cu_seqlens,
            self.cu_seqlens,
            self.max_seqlen,
            self.max_seqlen,
            0.0,
            self.causal,
            False,
            scale=self.problem.scale,
            window_size_left=left,
            window_size_right=right,
        )
        return out, lse

    def raw_backward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        dout: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        import torch

        left, right = self.window
        return torch.ops.aten._flash_attention_backward(
            dout,
            q,
            k,
            v,
            out,
            lse,
            self.cu_seqlens,
            self.cu_seqlens,
            self.max_seqlen,
            self.max_seqlen,
            0.0,
            self.causal,
            self._no_random,
            self._unused,
            scale=self.problem.scale,
            window_size_left=left,
            window_size_right=right,
        )
