"""FlashAttention-4 with gradients that are summed in a fixed order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.core import CallSpec
from longca.kernels.backends.fa4 import Fa4, Fa4PackedPrepared
from longca.kernels.contract import unfit_device, unfit_mask

if TYPE_CHECKING:
    from longca.kernels.contract import Problem
    from longca.masks import Traits

ARCHITECTURES = ("sm_90", "sm_100", "sm_103", "sm_110")  # of those of FA4; sm_120 has no such backward


class Fa4Deterministic(Fa4):
    label = "FA4, fixed order"
    family = "dense"
    summary = "FlashAttention-4 with `deterministic=True`: windows and packed documents; no block lists"
    deterministic = True

    def available(self, device_type: str) -> str | None:
        return super().available(device_type) or unfit_device(device_type, *ARCHITECTURES)

    def supports(self, call: CallSpec, traits: Traits, device_type: str) -> str | None:
        if call.direction == "fwd":
            return "forward it is `fa4`"
        if unfit_mask(traits) is not None:
            # on sm_90 the kernel asserts that there are none
            return (
                "its deterministic backward takes no lists of blocks, so no mask beyond segments of "
                "tokens under one window"
            )
        return super().supports(call, traits, device_type)

    def prepare(self, problem: Problem) -> Fa4PackedPrepared:
        return Fa4PackedPrepared(problem, deterministic=True)
