"""FFA, the kernel of MagiAttention: a mask as slices, rectangles of four types. It must be installed from its
repository."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from longca.core import CallSpec
from longca.kernels.contract import (
    Forward,
    Kernel,
    Prepared,
    Problem,
    missing_modules,
    unfit_build,
    unfit_device,
)

if TYPE_CHECKING:
    import torch

    from longca.masks import Traits


class Ffa(Kernel):
    label = "FFA"
    summary = "MagiAttention's Flex-Flash-Attention for Hopper: any mask that all heads share, as slices"
    needs = ("torch", "magi_attention")
    url = "https://github.com/SandAI-org/MagiAttention"
    returns_lse = True

    def available(self, device_type: str) -> str | None:
        return missing_modules(self.needs) or unfit_device(device_type, "sm_90")

    def supports(self, call: CallSpec, traits: Traits, device_type: str) -> str | None:
        reason = unfit_build(call, (64, 128), ("bf16", "fp16"))
        if reason is None and traits.per_head:
            return "heads have masks of their own; it takes one list of slices for all"
        return reason

    def in_parts(self, call: CallSpec, device_type: str) -> str | None:
        return (
            None
            if call.direction == "fwd"
            else "its public function has no backward from an LSE over more keys"
        )

    def prepare(self, problem: Problem) -> FfaPrepared:
        return FfaPrepared(problem)


class FfaPrepared(Prepared):
    """Layout T × heads × D. If no two slices share a query, outputs are stored without atomics."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        import importlib

        import numpy as np
        import torch

        from longca.lowering import attn_slices

        slices = attn_slices(problem.mask)
        starts = np.argsort(slices.q_ranges[:, 0], kind="stable")
        start, end = slices.q_ranges[starts].T
        disjoint = bool((start[1:] >= end[:-1]).all())
        self._slices = [
            torch.from_numpy(x).to(problem.device) for x in (slices.q_ranges, slices.k_ranges, slices.types)
        ]
        self._options = {"softmax_scale": problem.scale, "disable_fwd_atomic_reduction": disjoint}
        self._function: Any = importlib.import_module("magi_attention.functional").flex_flash_attn_func
        self.costs["metadata_bytes"] = float(sum(x.nbytes for x in self._slices))
        self.notes.append(
            f"{len(start)} slices, " + ("stored without atomics" if disjoint else "added up by atomics")
        )

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Forward:
        import torch

        if not self.problem.needs_backward:
            with torch.no_grad():
                return Forward(*self._attend(q, k, v))
        leaves = tuple(x.detach().requires_grad_() for x in (q, k, v))
        out, lse = self._attend(*leaves)
        return Forward(out.detach(), lse.detach(), saved=(out, leaves))

    def _attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q_ranges, k_ranges, types = self._slices
        out, meta = self._function(
            q, k, v, q_ranges=q_ranges, k_ranges=k_ranges, attn_type_map=types, **self._options
        )
        return out.to(q.dtype), getattr(meta, "lse", meta)  # releases before 1.1 return the LSE itself

    def backward(
        self, forward: Forward, dout: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        import torch

        out, leaves = forward.saved
        dq, dk, dv = torch.autograd.grad(out, leaves, dout.to(out.dtype), retain_graph=True)
        return dq, dk, dv
