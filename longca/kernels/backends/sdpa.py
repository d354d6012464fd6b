"""torch's scaled dot-product attention, called such that it uses its fused path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from longca.core import CallSpec
from longca.kernels.contract import Forward, Kernel, Prepared, Problem
from longca.kernels.sizes import CallSizes

if TYPE_CHECKING:
    import torch

    from longca.masks import LazyMask, Mask, Traits


class Sdpa(Kernel):
    label = "SDPA"
    family = "both"
    summary = "torch.nn.functional.scaled_dot_product_attention: no mask, is_causal, or a bool mask of S²"
    url = (
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html"
    )
    transposes = True

    def supports(self, call: CallSpec, traits: Traits, device_type: str) -> str | None:
        return None

    def buffer_bytes(self, call: CallSpec, mask: Mask | LazyMask) -> int:
        """A dense mask, as bool and in the additive form of torch, and beside it KV heads copied for each
        query head. Backward: dQ in float32, and dK and dV of all query heads, which are summed if heads share
        keys."""
        traits = mask.traits
        sizes = CallSizes(call, traits)
        held = sizes.wide_sums() if sizes.is_backward else 0
        if traits.full or traits.causal:
            return held
        dense = (1 + call.elem_bytes) * traits.seqlen_q * traits.seqlen_k * traits.num_groups
        return held + dense + sizes.unsummed_keys  # K and V are copied as dK and dV are

    def prepare(self, problem: Problem) -> SdpaPrepared:
        return SdpaPrepared(problem)


class SdpaPrepared(Prepared):
    """Layout (mask groups, heads of one mask group, T, D), so that masks of head groups are along the
    batch."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        traits = problem.mask.traits
        self._options: dict[str, Any] = {
            "is_causal": traits.causal and not traits.full,
            "scale": problem.scale,
        }
        self._empty_rows: torch.Tensor | None = None  # (mask groups, 1, Sq, 1)
        self._num_copies = 1
        if not (traits.full or traits.causal):
            self._add_mask(problem)
        if problem.num_kv_heads < problem.num_q_heads:
            self._share_heads(problem)
        self._note_path(problem)

    def _add_mask(self, problem: Problem) -> None:
        from longca.lowering import dense_mask

        visible = dense_mask(problem.mask, problem.device)
        visible = visible.reshape(problem.mask.num_groups, 1, *visible.shape[-2:])
        if problem.mask.traits.empty_rows:
            # the result of a row without keys may be NaN, which would spread to all of dK: so the row sees
            # one key and is zeroed afterwards
            self._empty_rows = ~visible.any(-1, keepdim=True)
            visible[..., :1] |= self._empty_rows
            self.notes.append("rows without keys are repaired inside the timed call")
        self._options["attn_mask"] = visible
        self.costs["metadata_bytes"] = visible.numel()

    def _share_heads(self, problem: Problem) -> None:
        """Share KV heads: by torch's `enable_gqa` if that path is fused, otherwise by copies of the KV
        heads."""
        if "attn_mask" in self._options:
            reason = "a mask with GQA takes some versions of torch off their fused paths on GPUs"
        elif problem.needs_backward and problem.device.type == "cpu":
            reason = "torch's GQA backward on CPU adds up in the dtype, block by block"
        else:
            self._options["enable_gqa"] = True
            return
        self._num_copies = problem.num_q_heads // problem.num_kv_heads
        self.notes.append(
            f"KV heads copied {self._num_copies} times before the timed call, since {reason}; gradients of "
            "the copies are summed inside it"
        )

    def _note_path(self, problem: Problem) -> None:
        """Records the implementation that torch will choose in the notes."""
        import torch
        from torch.nn.attention import SDPBackend

        def empty(num_heads: int, num_tokens: int) -> torch.Tensor:
            return torch.empty(
                self._batch,
                num_heads // self._batch,
                num_tokens,
                problem.head_dim,
                dtype=problem.dtype,
                device=problem.device,
                requires_grad=problem.needs_backward,
            )

        q = empty(problem.num_q_heads, problem.mask.seqlen_q)
        k = empty(problem.num_kv_heads * self._num_copies, problem.mask.seqlen_k)
        # torch has no public name for it
        choice = torch._fused_sdp_choice(  # pyright: ignore[reportPrivateImportUsage]
            q, k, k, **self._options
        )
        self.notes.append(f"torch's {SDPBackend(choice).name} path")

    def to_layout(self, x_THD: torch.Tensor) -> torch.Tensor:
        num_tokens, num_heads, head_dim = x_THD.shape
        if num_heads < self.problem.num_q_heads:
            x_THD = x_THD.repeat_interleave(self._num_copies, 1)
        return x_THD.transpose(0, 1).contiguous().view(self._batch, -1, num_tokens, head_dim)

    def from_layout(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(0, 1).transpose(0, 1)

    @property
    def _batch(self) -> int:
        return self.problem.mask.num_groups

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Forward:
        import torch

        if not self.problem.needs_backward:
            with torch.no_grad():
                return Forward(self._attend(q, k, v))
        q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
        out = self._attend(q, k, v)
        return Forward(out.detach(), saved=(out, (q, k, v)))

    def _attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        import torch.nn.functional as F

        out = F.scaled_dot_product_attention(q, k, v, **self._options)
        return out if self._empty_rows is None else out.masked_fill(self._empty_rows, 0.0)

    def backward(
        self, forward: Forward, dout: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        import torch

        out, leaves = forward.saved
        dq, dk, dv = torch.autograd.grad(out, leaves, dout, retain_graph=True)
        return dq, self._sum_copies(dk), self._sum_copies(dv)

    def _sum_copies(self, grad: torch.Tensor) -> torch.Tensor:
        return grad if self._num_copies == 1 else grad.unflatten(1, (-1, self._num_copies)).sum(2)
