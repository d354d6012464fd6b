"""Band attention with gradients summed by atomics, like most other kernels: faster, but not bitwise
deterministic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.core import CallSpec
from longca.kernels.backends.band import Band

if TYPE_CHECKING:
    from longca.masks import LazyMask, Mask, Traits


class BandAtomic(Band):
    label = "band (own), any order"
    summary = (
        "The same with dQ, dK and dV from one kernel, which adds them to memory in any order: on "
        "Hopper, at head dim 128"
    )
    deterministic = False
    keeps_bits_of_heads = False

    def _is_one_pass(self, call: CallSpec, mask: Mask | LazyMask) -> bool:
        return True

    def supports(self, call: CallSpec, traits: Traits, device_type: str) -> str | None:
        if call.direction == "fwd":
            return "forward it is `band`"
        if call.head_dim != 128:
            return f"at head dim {call.head_dim} it is `band`"
        if traits.block_size is not None and traits.block_size[1] <= 64:
            return f"for blocks of {traits.block_size[1]} keys it is `band`"
        return super().supports(call, traits, device_type)
