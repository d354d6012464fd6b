"""FlashAttention-3 as LongCA-bench released it: its backward accumulates into gradients that are never
reset."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.core import CallSpec
from longca.kernels.backends.fa3 import Fa3, Fa3Prepared
from longca.kernels.contract import Forward, Prepared, Problem

if TYPE_CHECKING:
    import torch

    from longca.masks import Traits


class AsReleasedFa3(Fa3):
    label = "FA3, as released"
    summary = (
        "`fa3` as the study timed its backward: each call adds its gradients to those of all calls before"
    )

    def supports(self, call: CallSpec, traits: Traits, device_type: str) -> str | None:
        return (
            "forward it is `fa3`" if call.direction == "fwd" else super().supports(call, traits, device_type)
        )

    def prepare(self, problem: Problem) -> AsReleasedFa3Prepared:
        return AsReleasedFa3Prepared(problem)


class Accumulating(Prepared):
    """A backward that accumulates its gradients over calls, as autograd does in `.grad`; it returns the
    gradients of the call."""

    _kept: tuple[torch.Tensor, ...] | None = None

    def backward(
        self, forward: Forward, dout: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        grads = super().backward(forward, dout)
        if self._kept is None:
            self._kept = tuple(grad.clone() for grad in grads)
        else:
            for kept, grad in zip(self._kept, grads, strict=True):
                kept.add_(grad)
        return grads


class AsReleasedFa3Prepared(Accumulating, Fa3Prepared):
    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.notes.append("as released: gradients of all calls are added up inside the timed call")
