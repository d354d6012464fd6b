"""The first FlashAttention: flash-attn 1.0.9, the last release before FlashAttention-2.

PyPI has only its sources. `tools/kernel_build` compiles them for sm_90 with the local nvcc into its
extension, `flash_attn_cuda`. The extension is put on the path without its Python package, whose name
conflicts with FlashAttention-2.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from longca.core import CallSpec
from longca.kernels.contract import Kernel, Problem, missing_modules, unfit_device, unfit_mask
from longca.kernels.packed import PackedPrepared
from longca.kernels.sizes import CallSizes

if TYPE_CHECKING:
    import torch

    from longca.masks import LazyMask, Mask, Traits

MAX_HEAD_DIM = 128
SUM_BYTES = 4  # for each element of the output while it is accumulated
ROWS = 16  # its LSE is padded to a multiple of this


class Fa1(Kernel):
    label = "FA1"
    summary = (
        "flash-attn 1.0.9, the first FlashAttention: full, causal and packed documents, as many KV as "
        "query heads"
    )
    needs = ("torch", "flash_attn_cuda")
    url = "https://pypi.org/project/flash-attn/1.0.9/"
    returns_lse = True

    def available(self, device_type: str) -> str | None:
        reason = missing_modules(self.needs)
        if reason is not None and "flash_attn_cuda" in reason:
            reason += " (the extension of flash-attn 1.0.9, which has to be built)"
        return reason or unfit_device(device_type, "sm_80+")

    def supports(self, call: CallSpec, traits: Traits, device_type: str) -> str | None:
        if call.dtype not in ("bf16", "fp16"):
            return "it computes in bf16 and fp16 only"
        if call.head_dim % 8 or call.head_dim > MAX_HEAD_DIM:
            return f"it takes head dims that are multiples of 8, up to {MAX_HEAD_DIM}"
        if call.num_kv_heads < call.num_q_heads:
            return "it has no GQA: it takes as many KV heads as query heads"
        if traits.seqlen_q * call.num_q_heads * call.head_dim * SUM_BYTES >= 1 << 32:
            return "it counts bytes in 32 bits, and its float32 sums are more"
        if traits.seqlen_q != traits.seqlen_k:
            return "this adapter gives it as many keys as queries"
        reason = unfit_mask(traits)
        if reason is None and traits.window not in ((-1, -1), (-1, 0)):
            return "it has no windows"
        return reason

    def buffer_bytes(self, call: CallSpec, mask: Mask | LazyMask) -> int:
        """Forward: the output in float32. Backward: dQ in float32 and a statistic of rows."""
        sizes = CallSizes(call, mask.traits)
        return sizes.query_sums + sizes.lse * (2 if sizes.is_backward else 1)

    def prepare(self, problem: Problem) -> Fa1Prepared:
        return Fa1Prepared(problem)


class Fa1Prepared(PackedPrepared):
    """Layout T × heads × D, also for one segment; LSE (segments, H, longest segment, padded)."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem, always_packed=True)
        import torch

        assert self.cu_seqlens is not None
        self._extension: Any = importlib.import_module("flash_attn_cuda")
        lengths = self.cu_seqlens.diff()
        row = torch.arange(-(-self.max_seqlen // ROWS) * ROWS, device=problem.device)
        self._is_token = row < lengths[:, None]  # (segments, padded rows)

    def lse_from_layout(self, lse: torch.Tensor) -> torch.Tensor:
        return lse.transpose(1, 2)[self._is_token]

    def lse_to_layout(self, lse_TH: torch.Tensor) -> torch.Tensor:
        padded = lse_TH.new_zeros(*self._is_token.shape, lse_TH.shape[1])
        padded[self._is_token] = lse_TH
        return padded.transpose(1, 2).contiguous()

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = q.new_empty(q.shape)
        lse, *_ = self._extension.fwd(
            q,
            k,
            v,
            out,
            self.cu_seqlens,
            self.cu_seqlens,
            self.max_seqlen,
            self.max_seqlen,
            0.0,
            self.problem.scale,
            False,
            self.causal,
            False,
            0,
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
        dq = q.new_empty(q.shape)
        dk = k.new_empty(k.shape)
        dv = v.new_empty(v.shape)
        self._extension.bwd(
            dout,
            q,
            k,
            v,
            out,
            lse,
            dq,
            dk,
            dv,
            self.cu_seqlens,
            self.cu_seqlens,
            self.max_seqlen,
            self.max_seqlen,
            0.0,
            self.problem.scale,
            False,
            self.causal,
            0,
            None,
            None,
        )
        return dq, dk, dv
