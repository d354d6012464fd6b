"""FlexAttention with the FLASH backend: torch compiles the mask into the CuTe kernels of FlashAttention-4."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from longca.core import CallSpec
from longca.kernels.backends.flex import BLOCK, BLOCK_TABLES, SMALLEST_HEAD_DIM, FlexPrepared
from longca.kernels.contract import Kernel, Problem, missing_for_triton
from longca.kernels.sizes import CallSizes

if TYPE_CHECKING:
    from longca.masks import LazyMask, Mask, Traits


class FlexFlash(Kernel):
    label = "FlexAttention, FLASH"
    family = "both"
    summary = (
        "torch.compile of flex_attention with BACKEND=FLASH: FlashAttention-4's kernels under a block "
        "mask of 128"
    )
    url = "https://docs.pytorch.org/docs/stable/nn.attention.flex_attention.html"
    needs = ("torch", "triton", "flash_attn.cute", "cutlass")
    transposes = True

    def available(self, device_type: str) -> str | None:
        return missing_for_triton(self.needs, device_type)

    def supports(self, call: CallSpec, traits: Traits, device_type: str) -> str | None:
        if call.dtype not in ("bf16", "fp16"):
            return "FlashAttention-4 takes bf16 and fp16 only"
        if call.head_dim % 8 or not SMALLEST_HEAD_DIM <= call.head_dim <= 128:
            return (
                f"with blocks of 128, torch gives FlashAttention-4 head dims from {SMALLEST_HEAD_DIM} to "
                f"128 in steps of 8"
            )
        return None

    def buffer_bytes(self, call: CallSpec, mask: Mask | LazyMask) -> int:
        """As of `fa4` under a block mask of both directions."""
        traits = mask.traits
        sizes = CallSizes(call, traits)
        num_lists = 0 if traits.full else call.num_q_heads if traits.per_head else 1
        own = sizes.lse + (sizes.flash_sums() if sizes.is_backward else 0)
        return own + BLOCK_TABLES * sizes.tile_table(BLOCK, num_lists)

    def prepare(self, problem: Problem) -> FlexFlashPrepared:
        return FlexFlashPrepared(problem)


class FlexFlashPrepared(FlexPrepared):
    # the element test is never trivial: with a trivial test torch 2.11 would ignore the blocks and attend to
    # all pairs
    bool_tables = False  # its kernels cannot load single bytes as bool

    def _kernel_options(self) -> dict[str, Any] | None:
        return {"BACKEND": "FLASH"}

    def _why_no_lse(self) -> str:
        return (
            "torch 2.11 scales this backend's LSE as if it were one of base 2, and has no backward beside it"
        )
