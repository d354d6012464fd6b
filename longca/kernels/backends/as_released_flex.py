"""FlexAttention as LongCA-bench released it: an eager `create_block_mask`, with a score function as
fallback."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from longca.kernels.backends.flex import Flex, FlexPrepared
from longca.kernels.contract import Problem

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.nn.attention.flex_attention import BlockMask

    from longca.lowering.mask_mod import MaskMod

    ScoreMod: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


class AsReleasedFlex(Flex):
    label = "FlexAttention, as released"
    summary = (
        "`flex` as the study called it: block mask by way of S² values; where these do not fit none, "
        "and all scores computed"
    )

    def prepare(self, problem: Problem) -> AsReleasedFlexPrepared:
        return AsReleasedFlexPrepared(problem)


class AsReleasedFlexPrepared(FlexPrepared):
    _score_mod: ScoreMod | None = None

    def _block_mask(self) -> BlockMask | None:
        """The block mask of torch's own helper, uncompiled: it stores a value for each pair of tokens, and
        for each head if heads differ."""
        from torch.nn.attention.flex_attention import create_block_mask

        from longca.lowering.mask_mod import mask_mod

        mask = self.problem.mask
        device = self.problem.device
        num_heads = self.problem.num_q_heads
        if mask.traits.full:
            return super()._block_mask()
        visible = mask_mod(mask, device, num_heads)
        try:
            made = create_block_mask(
                visible,
                None,
                num_heads if mask.num_groups > 1 else None,
                mask.seqlen_q,
                mask.seqlen_k,
                str(device),
            )
        except RuntimeError as error:  # the study caught these, which include torch's out-of-memory errors
            self._score_mod = _hiding(visible)
            self.notes.append(
                f"as released: no block mask ({type(error).__name__}), so all scores are computed and then "
                f"hidden"
            )
            return None
        self.notes.append(
            "as released: the block mask is made eagerly, by way of a value for each pair of tokens"
        )
        return made

    def _results(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if self._score_mod is not None:
            self._options["score_mod"] = self._score_mod
        return super()._results(q, k, v)


def _hiding(visible: MaskMod) -> ScoreMod:
    """The score function that hides pairs outside of the element test."""
    import torch

    def score_mod(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return torch.where(visible(b, h, q_idx, kv_idx), score, -float("inf"))

    return score_mod
