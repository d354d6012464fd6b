"""FlashAttention-3 with gradients that are summed in a fixed order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.core import CallSpec
from longca.kernels.backends.fa3 import Fa3, Fa3Prepared

if TYPE_CHECKING:
    from longca.kernels.contract import Problem
    from longca.masks import Traits


class Fa3Deterministic(Fa3):
    label = "FA3, fixed order"
    summary = "FlashAttention-3 with `deterministic=True`: blocks of keys wait for their turn to add to dq"
    deterministic = True

    def supports(self, call: CallSpec, traits: Traits, device_type: str) -> str | None:
        if call.direction == "fwd":
            return "forward it is `fa3`"
        return super().supports(call, traits, device_type)

    def prepare(self, problem: Problem) -> Fa3Prepared:
        return Fa3Prepared(problem, deterministic=True)
