"""One kernel call on some of the queries and some of the keys, as a part of attention over all keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch

    from longca.kernels import Contribution, Forward, Kernel, Prepared, Problem

    Given = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
    """(q, k, v, out, LSE, dout)"""

# costs that are summed over calls; for others the largest counts
SUMMED = ("plan_ms", "compile_ms", "metadata_bytes")


def sum_of_costs(prepared: Iterable[Prepared]) -> dict[str, float]:
    """The costs of several prepared kernels of one rank."""
    total: dict[str, float] = {}
    for call in prepared:
        for name, cost in call.costs.items():
            total[name] = total.get(name, 0.0) + cost if name in SUMMED else max(total.get(name, 0.0), cost)
    return total


class LocalCall:
    """A prepared kernel with tensors as T × heads × D and T × H. Conversion to the kernel's layout is part of
    the call."""

    def __init__(self, kernel: Kernel, problem: Problem) -> None:
        self.prepared: Prepared = kernel.prepare(problem)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(out, LSE)."""
        return self.from_layout(self.forward_in_layout(q, k, v))

    def forward_in_layout(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Forward:
        """The result in the kernel's layout, for `from_layout`; messages may be posted between the two
        calls."""
        return self.prepared.forward(*(self.prepared.to_layout(x) for x in (q, k, v)))

    def from_layout(self, result: Forward) -> tuple[torch.Tensor, torch.Tensor]:
        """(out, LSE)."""
        assert result.lse is not None, "a kernel without LSE has been refused"
        return self.prepared.from_layout(result.out), self.prepared.lse_from_layout(result.lse)

    def backward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        dout: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(dq, dk, dv) from the output and LSE over all keys."""
        grads = self.prepared.raw_backward(*self._laid_out(q, k, v, out, lse, dout))
        dq, dk, dv = (self.prepared.from_layout(grad) for grad in grads)
        return dq, dk, dv

    def forward_onto(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        total: torch.Tensor,
        lse: torch.Tensor,
        out: torch.Tensor,
        contributions: Sequence[Contribution],
    ) -> None:
        """`Prepared.forward_onto`, for kernels that merge."""
        q, k, v = (self.prepared.to_layout(x) for x in (q, k, v))
        self.prepared.forward_onto(q, k, v, total, lse, out, contributions)

    def backward_onto(
        self, given: Given, total: torch.Tensor, dq: torch.Tensor, contributions: Sequence[Contribution]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`Prepared.backward_onto`, for kernels that merge: (dk, dv) from the inputs of `backward`."""
        dk, dv = self.prepared.backward_onto(*self._laid_out(*given), total, dq, contributions)
        return self.prepared.from_layout(dk), self.prepared.from_layout(dv)

    def _laid_out(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        dout: torch.Tensor,
    ) -> Given:
        q, k, v, out, dout = (self.prepared.to_layout(x) for x in (q, k, v, out, dout))
        return q, k, v, out, self.prepared.lse_to_layout(lse), dout
