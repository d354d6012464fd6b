"""Reference attention of one chunk of query rows by its definition: in float64, or as a kernel of a narrow dtype would compute it.

Shapes: G head groups, R query heads per group, n rows of the chunk, C keys that the chunk sees, D head dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Arithmetic:
    """Dtypes of a computation: sums are kept in `wide`; operands of the second matmuls and results are rounded to `narrow`, if given."""

    wide: torch.dtype
    narrow: torch.dtype | None = None

    def round(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.narrow is None else x.to(self.narrow).to(self.wide)


@dataclass(frozen=True)
class Chunk:
    """Operands of one chunk in the wide dtype; q is already multiplied by the scale."""

    q_GRnD: torch.Tensor
    k_GCD: torch.Tensor
    v_GCD: torch.Tensor
    dout_GRnD: torch.Tensor | None
    visible_nC: torch.Tensor
    scale: float


@dataclass(frozen=True)
class Rows:
    """Results for the rows of a chunk; `dq` only with a backward."""

    out_GRnD: torch.Tensor
    lse_GRn: torch.Tensor
    weight_GRn: torch.Tensor  # ‖P‖ of each row
    dq_GRnD: torch.Tensor | None = None


@dataclass(frozen=True)
class Keys:
    """Contributions of a chunk to the gradients of its keys, and the size of dS before its subtraction."""

    dk_GCD: torch.Tensor
    dv_GCD: torch.Tensor
    weight_GC: torch.Tensor  # ‖P‖ of each key
    dscores_norm: torch.Tensor  # ‖P∘dP‖, before Σ P∘dP is subtracted


def attend(chunk: Chunk, arithmetic: Arithmetic) -> tuple[Rows, Keys | None]:
    """Compute out, LSE and, given dout, the gradients. Rows that see no key get out 0, LSE −∞, dq 0."""
    rounded = arithmetic.round
    num_groups, ratio, num_rows, _ = chunk.q_GRnD.shape
    shape = (num_groups, ratio, num_rows, chunk.k_GCD.shape[1])

    q = chunk.q_GRnD.flatten(1, 2)
    p = (q @ chunk.k_GCD.mT).view(shape)  # scores, then in place exp(score − max), then probabilities
    p.masked_fill_(~chunk.visible_nC, float("-inf"))
    top = p.amax(-1, keepdim=True) if shape[-1] else p.new_full((*shape[:-1], 1), float("-inf"))
    top = top.masked_fill(top == float("-inf"), 0)
    p.sub_(top).exp_()
    total = p.sum(-1, keepdim=True)
    lse = (top + total.log()).squeeze(-1)
    p.div_(total.masked_fill(total == 0, 1))
    p = p.view(num_groups, ratio * num_rows, shape[-1])
    out = rounded(rounded(p) @ chunk.v_GCD)
    weight = torch.linalg.vector_norm(p, dim=-1).view(shape[:-1])
    if chunk.dout_GRnD is None:
        return Rows(out.view(chunk.q_GRnD.shape), lse, weight), None

    dout = chunk.dout_GRnD.flatten(1, 2)
    dscores = (dout @ chunk.v_GCD.mT).mul_(p)
    norm = torch.linalg.vector_norm(dscores)
    delta = (dout * out).sum(-1, keepdim=True)
    dscores = rounded(dscores.addcmul_(p, delta, value=-1))
    dq = rounded(dscores @ chunk.k_GCD * chunk.scale)
    rows = Rows(out.view(chunk.q_GRnD.shape), lse, weight, dq.view(chunk.q_GRnD.shape))
    return rows, Keys(dscores.mT @ q, rounded(p).mT @ dout, torch.linalg.vector_norm(p, dim=1), norm)
