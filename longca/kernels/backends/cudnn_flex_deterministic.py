"""cuDNN's FlexAttention with gradients that are summed in a fixed order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.core import CallSpec
from longca.kernels.backends.cudnn_flex import CudnnFlex, CudnnFlexPrepared

if TYPE_CHECKING:
    from longca.kernels.contract import Problem
    from longca.masks import Traits


class CudnnFlexDeterministic(CudnnFlex):
    label = "cuDNN FlexAttention, fixed order"
    summary = (
        "cudnn.flex_attention with `deterministic=True`: any mask as intervals of keys; "
        "blocks of keys take turns"
    )
    deterministic = True

    def supports(self, call: CallSpec, traits: Traits, device_type: str) -> str | None:
        if call.direction == "fwd":
            return "forward it is `cudnn_flex`"
        return super().supports(call, traits, device_type)

    def prepare(self, problem: Problem) -> CudnnFlexPrepared:
        return CudnnFlexPrepared(problem, deterministic=True)
