"""FlashMask's column format in this project's own operator, not Paddle's kernel, which cannot be installed
together with torch."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from longca.core import CallSpec
from longca.kernels.contract import Forward, Kernel, Prepared, Problem, missing_for_triton
from longca.kernels.first_call import first_call_ms, wait
from longca.kernels.sizes import CallSizes

if TYPE_CHECKING:
    import torch

    from longca.masks import LazyMask, Mask, Traits


class FlashMask(Kernel):
    label = "FlashMask (own, Triton)"
    family = "dense"
    summary = "The column form of FlashMask in this project's own Triton operator; not Paddle's kernel"
    url = "https://arxiv.org/abs/2410.01359"
    needs = ("torch", "triton")
    returns_lse = True
    transposes = True

    def available(self, device_type: str) -> str | None:
        return missing_for_triton(self.needs, device_type)

    def supports(self, call: CallSpec, traits: Traits, device_type: str) -> str | None:
        if call.dtype not in ("bf16", "fp16"):
            return "takes bf16 and fp16 only"
        if call.head_dim not in (64, 128):
            return "takes head dims 64 and 128 only"
        most = 1 if traits.is_block_grid else 3  # two hidden runs leave at most three visible ones
        if traits.max_col_intervals > most:
            return (
                f"some key is seen by {traits.max_col_intervals} separate runs of queries, "
                "and FlashMask's columns can hide two runs from a key"
            )
        return None

    def buffer_bytes(self, call: CallSpec, mask: Mask | LazyMask) -> int:
        """Backward: two more statistics of rows. Gradients are written once."""
        sizes = CallSizes(call, mask.traits)
        return sizes.lse * (3 if sizes.is_backward else 1)

    def prepare(self, problem: Problem) -> FlashMaskPrepared:
        return FlashMaskPrepared(problem)


class FlashMaskPrepared(Prepared):
    """Layout (heads, T, D); LSE (H, T)."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        import torch

        from longca.lowering import flashmask_columns
        from longca.ops import flashmask_tuning
        from longca.ops.flashmask.forward import make_mask

        start = time.perf_counter()
        form = flashmask_columns(problem.mask)
        columns = torch.from_numpy(form.columns).to(problem.device)
        self._mask = make_mask(
            columns,
            form.causal,
            problem.mask.seqlen_q,
            flashmask_tuning(problem.head_dim),
            problem.needs_backward,
        )
        wait(problem.device)
        self.costs["plan_ms"] = (time.perf_counter() - start) * 1e3
        self.costs["metadata_bytes"] = self._mask.num_bytes
        self.notes.append(
            f"{'causal' if form.causal else 'not causal'}, {columns.shape[2]} columns; not Paddle's kernel"
        )
        if problem.records_costs:
            self.costs["compile_ms"] = first_call_ms(self)

    def to_layout(self, x_THD: torch.Tensor) -> torch.Tensor:
        return x_THD.transpose(0, 1).contiguous()

    def from_layout(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(0, 1)

    def lse_from_layout(self, lse: torch.Tensor) -> torch.Tensor:
        return lse.transpose(0, 1)

    def lse_to_layout(self, lse_TH: torch.Tensor) -> torch.Tensor:
        return lse_TH.T.contiguous()

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Forward:
        from longca.ops.flashmask.forward import forward

        out, lse = forward(q, k, v, self._mask, self.problem.scale)
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
        """(dq, dk, dv) from an output and LSE that may cover more keys than these.

        Args:
            lse: (H, T) float32, natural log.
        """
        from longca.ops.flashmask.backward import backward

        return backward(q, k, v, out, lse, dout, self._mask, self.problem.scale)
