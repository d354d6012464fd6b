"""cuDNN's fused attention through graphs of its frontend, planned before timing. They support more than
torch's operators."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from longca.core import CallSpec
from longca.kernels.contract import Kernel, Problem, missing_modules, unfit_device, unfit_mask
from longca.kernels.packed import PackedPrepared
from longca.kernels.sizes import FLOAT_BYTES, CallSizes

if TYPE_CHECKING:
    import torch

    from longca.masks import LazyMask, Mask, Traits

MAX_HEAD_DIM = 128
MOST_SEGMENTS = (1 << 16) - 1


class CudnnGraph(Kernel):
    label = "cuDNN graph"
    summary = (
        "cuDNN's fused attention by graphs of its frontend: causal, windows, packed documents, both "
        "directions"
    )
    url = "https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/operations/Attention.html"
    needs = ("torch", "cudnn")
    returns_lse = True

    def available(self, device_type: str) -> str | None:
        return unfit_device(device_type, "sm_90+") or missing_modules(self.needs)

    def supports(self, call: CallSpec, traits: Traits, device_type: str) -> str | None:
        if call.dtype not in ("bf16", "fp16"):
            return "it computes in bf16 and fp16 only"
        if call.head_dim % 8 or call.head_dim > MAX_HEAD_DIM:
            return f"it takes head dims that are multiples of 8, up to {MAX_HEAD_DIM}"
        if call.direction == "bwd" and traits.seqlen_q == traits.num_segments:
            return "its backward takes no segments of one token alone"
        if traits.num_segments > MOST_SEGMENTS:
            # https://github.com/pytorch/pytorch/pull/180718
            return f"it takes up to {MOST_SEGMENTS} documents"
        return unfit_mask(traits)

    def buffer_bytes(self, call: CallSpec, mask: Mask | LazyMask) -> int:
        """Backward: dQ in float32, and dK and dV of all query heads, which are summed if heads share keys; of
        packed segments in float32."""
        sizes = CallSizes(call, mask.traits)
        if not sizes.is_backward:
            return sizes.lse
        wide = 2 * sizes.wide_keys * (FLOAT_BYTES // call.elem_bytes if mask.traits.num_segments > 1 else 1)
        return 2 * sizes.lse + sizes.query_sums + (wide if sizes.shares_heads else 0)

    def prepare(self, problem: Problem) -> CudnnGraphPrepared:
        return CudnnGraphPrepared(problem)


class CudnnGraphPrepared(PackedPrepared):
    """Layout of `PackedPrepared`; LSE (1, H, T) for one segment, T × H for several.

    Args:
        deterministic: gradients are summed in a fixed order.
    """

    def __init__(self, problem: Problem, *, deterministic: bool = False) -> None:
        super().__init__(problem)
        import torch

        from longca.kernels.cudnn_sdpa import CudnnHandle, SdpaGraph, ragged_tables

        with torch.cuda.device(problem.device):
            handle = CudnnHandle()
            start = time.perf_counter()
            tables = {} if self.cu_seqlens is None else ragged_tables(problem, self.cu_seqlens)
            directions = ("fwd", "bwd") if problem.needs_backward else ("fwd",)
            self._graphs = {
                direction: SdpaGraph(
                    direction,
                    problem,
                    self.window,
                    self.max_seqlen,
                    tables,
                    handle,
                    deterministic=deterministic,
                )
                for direction in directions
            }
            self.costs["plan_ms"] += (time.perf_counter() - start) * 1e3
        self.costs["metadata_bytes"] = sum(table.nbytes for table in tables.values())
        self.costs["workspace_bytes"] = max(graph.workspace_bytes for graph in self._graphs.values())

    def lse_from_layout(self, lse: torch.Tensor) -> torch.Tensor:
        return lse if self.cu_seqlens is not None else lse.squeeze(0).T

    def lse_to_layout(self, lse_TH: torch.Tensor) -> torch.Tensor:
        return lse_TH.contiguous() if self.cu_seqlens is not None else lse_TH.T.contiguous().unsqueeze(0)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        import torch

        *_, num_tokens, num_heads, _ = q.shape
        shape = (num_tokens, num_heads) if self.cu_seqlens is not None else (1, num_heads, num_tokens)
        out = q.new_empty(q.shape)
        lse = q.new_empty(shape, dtype=torch.float32)
        self._graphs["fwd"].run(q=q, k=k, v=v, out=out, lse=lse)
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
        self._graphs["bwd"].run(q=q, k=k, v=v, out=out, lse=lse, dout=dout, dq=dq, dk=dk, dv=dv)
        return dq, dk, dv
