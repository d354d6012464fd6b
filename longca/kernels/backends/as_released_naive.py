"""Naive attention as LongCA-bench released it: each timed call copies the S² bias from the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.kernels.backends.naive import Naive, NaivePrepared
from longca.kernels.contract import Problem

if TYPE_CHECKING:
    import torch


class AsReleasedNaive(Naive):
    label = "Naive, as released"
    summary = (
        "`naive` as the study called it: a bias of S², made on the host and copied to the device "
        "inside the timed call"
    )

    def prepare(self, problem: Problem) -> AsReleasedNaivePrepared:
        return AsReleasedNaivePrepared(problem)


class AsReleasedNaivePrepared(NaivePrepared):
    """The study's backward starts from the saved forward and creates no bias; nor does this one."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        # so that the base class returns all scores
        self._by_bias = self._hidden
        self._hidden = None
        self.notes.append(
            "as released: a bias of S² is made on the host and copied to the device inside the timed call"
        )

    def _scores(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        """The scores of `naive`, masked by adding a bias. Its zeros come from the host and, under a causal
        mask, so does the lower triangle."""
        import torch

        mask = self.problem.mask
        scores = super()._scores(q, k)
        bias = torch.zeros(mask.seqlen_q, mask.seqlen_k, dtype=q.dtype).to(q.device)
        if self._by_bias is None:
            return scores.add_(bias)
        hidden = self._by_bias
        if mask.traits.causal:
            hidden = (
                torch.ones(mask.seqlen_q, mask.seqlen_k, dtype=torch.bool)
                .tril()
                .to(q.device)
                .logical_not()[None, None]
            )
        of_groups = scores.view(hidden.shape[0], -1, *scores.shape[-2:])
        of_groups.add_(bias.expand(hidden.shape).masked_fill(hidden, float("-inf")))
        return scores
