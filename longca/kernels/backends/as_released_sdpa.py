"""SDPA as LongCA-bench released it: `enable_gqa` with a mask tensor, for which some versions of torch lack a
fused path on GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.core import CallSpec
from longca.kernels.backends.sdpa import Sdpa, SdpaPrepared
from longca.kernels.contract import Problem

if TYPE_CHECKING:
    from longca.masks import Traits


class AsReleasedSdpa(Sdpa):
    label = "SDPA, as released"
    summary = (
        "`sdpa` as the study called it: torch shares the KV heads beside a mask tensor, off the fused "
        "paths of older ones"
    )

    def supports(self, call: CallSpec, traits: Traits, device_type: str) -> str | None:
        if traits.full or traits.causal:
            return "without a mask tensor it is `sdpa`"
        if call.num_kv_heads == call.num_q_heads:
            return "with as many KV heads as query heads it is `sdpa`"
        return super().supports(call, traits, device_type)

    def prepare(self, problem: Problem) -> AsReleasedSdpaPrepared:
        return AsReleasedSdpaPrepared(problem)


class AsReleasedSdpaPrepared(SdpaPrepared):
    def _share_heads(self, problem: Problem) -> None:
        self._options["enable_gqa"] = True
        self.notes.append("as released: torch shares the KV heads beside a mask tensor (`enable_gqa`)")
