"""cuDNN's fused attention by graphs, with gradients that are summed in a fixed order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.core import CallSpec
from longca.kernels.backends.cudnn_graph import CudnnGraph, CudnnGraphPrepared
from longca.kernels.contract import missing_modules, unfit_device

if TYPE_CHECKING:
    from longca.kernels.contract import Problem
    from longca.masks import Traits

ARCHITECTURES = ("sm_90", "sm_100", "sm_103")


class CudnnGraphDeterministic(CudnnGraph):
    label = "cuDNN graph, fixed order"
    summary = "cuDNN's fused attention with `use_deterministic_algorithm`: causal, windows, packed documents"
    deterministic = True

    def available(self, device_type: str) -> str | None:
        return unfit_device(device_type, *ARCHITECTURES) or missing_modules(self.needs)

    def supports(self, call: CallSpec, traits: Traits, device_type: str) -> str | None:
        if call.direction == "fwd":
            return "forward it is `cudnn_graph`"
        return super().supports(call, traits, device_type)

    def prepare(self, problem: Problem) -> CudnnGraphPrepared:
        return CudnnGraphPrepared(problem, deterministic=True)
