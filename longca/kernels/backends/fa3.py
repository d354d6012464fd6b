"""FlashAttention-3, for Hopper GPUs only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from longca.core import CallSpec
from longca.kernels.contract import Kernel, Problem, missing_modules, unfit_build, unfit_device, unfit_mask
from longca.kernels.packed import PackedPrepared
from longca.kernels.sizes import ROUNDED_ROWS, CallSizes

if TYPE_CHECKING:
    import torch

    from longca.masks import LazyMask, Mask, Traits


class Fa3(Kernel):
    label = "FA3"
    summary = "FlashAttention-3 for Hopper, built for head dim 128 in bf16: causal, windows, packed documents"
    needs = ("torch", "flash_attn_interface", "flash_attn_3")
    url = "https://github.com/Dao-AILab/flash-attention/tree/main/hopper"
    returns_lse = True

    def available(self, device_type: str) -> str | None:
        return missing_modules(self.needs) or unfit_device(device_type, "sm_90")

    def supports(self, call: CallSpec, traits: Traits, device_type: str) -> str | None:
        return unfit_build(call, (128,), ("bf16",)) or unfit_mask(traits, tails=True)

    def buffer_bytes(self, call: CallSpec, mask: Mask | LazyMask) -> int:
        """Backward: two more statistics of rows, dQ in float32, and dK and dV in float32 if heads share keys,
        all with rows of padding in each segment."""
        sizes = CallSizes(call, mask.traits)
        return sizes.lse + (sizes.flash_sums(ROUNDED_ROWS) if sizes.is_backward else 0)

    def prepare(self, problem: Problem) -> Fa3Prepared:
        return Fa3Prepared(problem)


class Fa3Prepared(PackedPrepared):
    """FlashAttention-3 for one segment, or several packed ones, under one window.

    Args:
        deterministic: blocks of keys add to a row of dq, and heads of a group to dk and dv, in a fixed order.
    """

    def __init__(self, problem: Problem, *, deterministic: bool = False) -> None:
        super().__init__(problem)
        import importlib

        self._interface: Any = importlib.import_module("flash_attn_interface")
        self._max_seqlen = None if self.cu_seqlens is None else self.max_seqlen
        self._order: dict[str, bool] = {"deterministic": True} if deterministic else {}

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        cu_seqlens = self.cu_seqlens
        max_seqlen = self._max_seqlen
        no_cache = (None,) * 9  # pages, offsets, rotary embedding and descaling
        out, lse, *_ = self._interface._flash_attn_forward(
            q,
            k,
            v,
            None,
            None,
            None,
            None,
            cu_seqlens,
            cu_seqlens,
            None,
            None,
            None,
            max_seqlen,
            max_seqlen,
            *no_cache,
            self.problem.scale,
            self.causal,
            self.window,
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
        cu_seqlens = self.cu_seqlens
        max_seqlen = self._max_seqlen
        dq = q.new_empty(q.shape)
        dk = k.new_empty(k.shape)
        dv = v.new_empty(v.shape)
        self._interface._flash_attn_backward(
            dout,
            q,
            k,
            v,
            out,
            lse,
            cu_seqlens,
            cu_seqlens,
            None,
            None,
            max_seqlen,
            max_seqlen,
            dq,
            dk,
            dv,
            self.problem.scale,
            self.causal,
            self.window,
            **self._order,
        )
        return dq, dk, dv
