"""FlashAttention-2 from its authors' package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from longca.core import CallSpec
from longca.kernels.contract import Kernel, Problem, missing_modules, unfit_build, unfit_device, unfit_mask
from longca.kernels.packed import PackedPrepared
from longca.kernels.sizes import ROUNDED_ROWS, CallSizes

if TYPE_CHECKING:
    import torch

    from longca.masks import LazyMask, Mask, Traits


class Fa2(Kernel):
    label = "FA2"
    summary = "flash-attn 2.8.3, built for head dim 128 in bf16: causal, windows, packed documents"
    needs = ("torch", "flash_attn", "flash_attn_2_cuda")
    url = "https://github.com/Dao-AILab/flash-attention"
    returns_lse = True

    def available(self, device_type: str) -> str | None:
        return missing_modules(self.needs) or unfit_device(device_type, "sm_80+")

    def supports(self, call: CallSpec, traits: Traits, device_type: str) -> str | None:
        return unfit_build(call, (128,), ("bf16",)) or unfit_mask(traits, tails=True)

    def buffer_bytes(self, call: CallSpec, mask: Mask | LazyMask) -> int:
        sizes = CallSizes(call, mask.traits)
        return sizes.wide_sums(ROUNDED_ROWS) if sizes.is_backward else sizes.lse

    def prepare(self, problem: Problem) -> Fa2Prepared:
        return Fa2Prepared(problem)


class Fa2Prepared(PackedPrepared):
    """Direct calls of the extension: the package's wrappers add the overhead of torch's custom operators."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        import importlib

        self._extension: Any = importlib.import_module("flash_attn_2_cuda")

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        left, right = self.window
        scale = self.problem.scale
        # (…, alibi, dropout, scale, causal, window, softcap, return_softmax, generator)
        if self.cu_seqlens is None:
            out, lse, *_ = self._extension.fwd(
                q, k, v, None, None, 0.0, scale, self.causal, left, right, 0.0, False, None
            )
        else:
            out, lse, *_ = self._extension.varlen_fwd(
                q,
                k,
                v,
                None,
                self.cu_seqlens,
                self.cu_seqlens,
                None,
                None,
                None,
                None,
                self.max_seqlen,
                self.max_seqlen,
                0.0,
                scale,
                False,
                self.causal,
                left,
                right,
                0.0,
                False,
                None,
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
        left, right = self.window
        scale = self.problem.scale
        # (…, dq, dk, dv, alibi, dropout, scale, causal, window, softcap, deterministic, …)
        if self.cu_seqlens is None:
            dq, dk, dv, _ = self._extension.bwd(
                dout,
                q,
                k,
                v,
                out,
                lse,
                None,
                None,
                None,
                None,
                0.0,
                scale,
                self.causal,
                left,
                right,
                0.0,
                False,
                None,
                None,
            )
        else:
            dq, dk, dv, _ = self._extension.varlen_bwd(
                dout,
                q,
                k,
                v,
                out,
                lse,
                None,
                None,
                None,
                self.cu_seqlens,
                self.cu_seqlens,
                None,
                self.max_seqlen,
                self.max_seqlen,
                0.0,
                scale,
                False,
                self.causal,
                left,
                right,
                0.0,
                False,
                None,
                None,
            )
        return dq, dk, dv
