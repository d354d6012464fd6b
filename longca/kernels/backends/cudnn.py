"""cuDNN's fused attention through torch's aten operators, called directly instead of through SDPA."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from longca.core import CallSpec
from longca.kernels.contract import Kernel, Problem, unfit_device, unfit_mask
from longca.kernels.packed import PackedPrepared
from longca.kernels.sizes import CallSizes

if TYPE_CHECKING:
    import torch

    from longca.masks import LazyMask, Mask, Traits

MAX_HEAD_DIM = 128
MAX_OFFSET = (1 << 31) - 1
MOST_HOST_MS = 1.0  # planning takes tens of ms; a call with a cached plan takes much less


class Cudnn(Kernel):
    label = "cuDNN"
    summary = "cuDNN's fused attention inside torch: full, causal, and packed documents forward"
    url = "https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/operations/Attention.html"
    returns_lse = True
    transposes = True

    def available(self, device_type: str) -> str | None:
        reason = unfit_device(device_type, "sm_80+")
        if reason is not None:
            return reason
        import torch

        return None if torch.backends.cudnn.is_available() else "torch finds no cuDNN"

    def supports(self, call: CallSpec, traits: Traits, device_type: str) -> str | None:
        if call.dtype not in ("bf16", "fp16"):
            return "it computes in bf16 and fp16 only"
        if call.head_dim % 8 or call.head_dim > MAX_HEAD_DIM:
            return f"it takes head dims that are multiples of 8, up to {MAX_HEAD_DIM}"
        reason = unfit_mask(traits)
        if reason is not None:
            return reason
        if traits.window not in (None, (-1, -1), (-1, 0)):
            return "torch's operator for cuDNN has no window argument"
        if traits.num_segments > 1 and traits.seqlen_q * call.num_q_heads * call.head_dim > MAX_OFFSET:
            return (
                "torch's operator for cuDNN counts elements of packed documents in 32 bits, and these "
                "are more"
            )
        if call.direction == "bwd" and traits.seqlen_q == 1:
            return "cuDNN's backward takes no sequence of one token alone"
        if call.direction == "bwd" and traits.num_segments > 1:
            # https://github.com/pytorch/pytorch/pull/186142: it uses the head dim as the longest segment
            return "torch's operator for cuDNN writes out of bounds in the backward of packed documents"
        return None

    def buffer_bytes(self, call: CallSpec, mask: Mask | LazyMask) -> int:
        sizes = CallSizes(call, mask.traits)
        return sizes.wide_sums() if sizes.is_backward else sizes.lse

    def prepare(self, problem: Problem) -> CudnnPrepared:
        return CudnnPrepared(problem)


class CudnnPrepared(PackedPrepared):
    """Layout (1, heads, T, D) with LSE (1, H, T, …) for one segment, T × heads × D with LSE (T, H, …) for
    several."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        import torch

        # state of the unused dropout
        self._no_random = torch.zeros(1, dtype=torch.int64, device=problem.device)
        if self.cu_seqlens is not None:
            host_ms = self._host_ms()
            if host_ms > MOST_HOST_MS:
                # torch 2.11 looks plans up in its cache but never stores them:
                # https://github.com/pytorch/pytorch/pull/191576
                self.notes.append(
                    "torch plans cuDNN's graph anew on every call for packed documents: "
                    f"{host_ms:.0f} ms of each call pass on the host"
                )

    def _host_ms(self) -> float:
        """Host time of one call, in ms, after a first call that loaded all kernels."""
        import torch

        problem = self.problem
        q, k = (
            torch.zeros(num_tokens, num_heads, problem.head_dim, dtype=problem.dtype, device=problem.device)
            for num_tokens, num_heads in (
                (problem.mask.seqlen_q, problem.num_q_heads),
                (problem.mask.seqlen_k, problem.num_kv_heads),
            )
        )
        self.attend(q, k, k)
        torch.cuda.synchronize(problem.device)
        start = time.perf_counter()
        self.attend(q, k, k)
        elapsed_ms = (time.perf_counter() - start) * 1e3
        torch.cuda.synchronize(problem.device)
        return elapsed_ms

    def to_layout(self, x_THD: torch.Tensor) -> torch.Tensor:
        if self.cu_seqlens is not None:
            return x_THD.contiguous()
        import torch

        # `contiguous` keeps odd strides if there is one head
        return x_THD.transpose(0, 1).clone(memory_format=torch.contiguous_format).unsqueeze(0)

    def from_layout(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.cu_seqlens is not None else x.squeeze(0).transpose(0, 1)

    def lse_from_layout(self, lse: torch.Tensor) -> torch.Tensor:
        num_heads = self.problem.num_q_heads
        return lse.reshape(-1, num_heads) if self.cu_seqlens is not None else lse.reshape(num_heads, -1).T

    def lse_to_layout(self, lse_TH: torch.Tensor) -> torch.Tensor:
        return (
            lse_TH.contiguous()[..., None]
            if self.cu_seqlens is not None
            else lse_TH.T.contiguous()[None, :, :, None]
        )

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        import torch

        out, lse, *_ = torch.ops.aten._cudnn_attention_forward(
            q,
            k,
            v,
            None,
            self.cu_seqlens,
            self.cu_seqlens,
            self.max_seqlen,
            self.max_seqlen,
            True,
            0.0,
            self.causal,
            False,
            scale=self.problem.scale,
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

        return torch.ops.aten._cudnn_attention_backward(
            dout,
            q,
            k,
            v,
            out,
            lse,
            self._no_random,
            self._no_random,
            None,
            self.cu_seqlens,
            self.cu_seqlens,
            self.max_seqlen,
            self.max_seqlen,
            0.0,
            self.causal,
            scale=self.problem.scale,
        )
