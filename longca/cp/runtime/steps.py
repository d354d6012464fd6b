"""A rank's kernel calls, one for each step: made ready once, their results put together in float32.

Shapes: L queries of the rank, H query heads, G KV heads, D head dim; n queries and m keys of one step.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from longca.cp.runtime.accumulate import DqAccumulator, OutputAccumulator
from longca.cp.runtime.contributions import contributions_of
from longca.cp.runtime.kernel_call import LocalCall
from longca.kernels.contribution import UNIT_ROWS
from longca.masks.band import Q0, Q1

if TYPE_CHECKING:
    import torch

    from longca.cp.schedule.plan import Plan, Step
    from longca.kernels.contract import Kernel, Problem
    from longca.kernels.contribution import Contribution
    from longca.masks.mask import Mask


@dataclass(frozen=True)
class LocalStep:
    """A kernel call for the queries first..behind, the only ones that see keys of the step."""

    first: int
    behind: int
    call: LocalCall
    visits: tuple[Contribution, ...] = ()
    """of a kernel that merges: which queries' results it begins and ends, counted from the first"""

    @property
    def rows(self) -> slice:
        return slice(self.first, self.behind)


class LocalSteps:
    """The kernel calls of one rank of a plan. Steps whose masks are equal share a prepared kernel."""

    def __init__(self, plan: Plan, rank: int, problem: Problem, kernel: Kernel) -> None:
        start = time.perf_counter()
        cut = cut_steps(plan, rank, merging=kernel.merges)
        self._visits = contributions_of(cut, int(plan.sharding.num_tokens[rank])) if kernel.merges and len(cut) > 1 else None
        self.cutting_ms = (time.perf_counter() - start) * 1e3
        """what making the masks of the steps has taken"""
        masks = {mask.digest: mask for _, _, mask in cut.values()}
        calls = {digest: LocalCall(kernel, replace(problem, mask=mask)) for digest, mask in masks.items()}
        self.steps = {number: LocalStep(first, behind, calls[mask.digest], self._visits.of_step[number] if self._visits else ())
                      for number, (first, behind, mask) in cut.items()}
        for step in self.steps.values():
            step.call.prepared.expect(step.visits)
        self.last = max(self.steps, default=None)
        self.prepared = [call.prepared for call in calls.values()]

    def running(self, q_LHD: torch.Tensor) -> OutputAccumulator:
        return OutputAccumulator(q_LHD, len(self.steps), self._visits)

    def running_gradient(self, q_LHD: torch.Tensor) -> DqAccumulator:
        return DqAccumulator(q_LHD, self._visits)

    def forward(self, number: int, total: OutputAccumulator, k_mGD: torch.Tensor, v_mGD: torch.Tensor) -> None:
        """The step's kernel. Its result waits in `total` for `OutputAccumulator.add`, or is merged already by a kernel that can."""
        step = self.steps[number]
        if step.visits:
            total.merge_onto(step, k_mGD, v_mGD)
        else:
            kernel = step.call.prepared
            total.waiting = step, kernel.forward(*(kernel.to_layout(x) for x in (total.q_LHD[step.rows], k_mGD, v_mGD)))

    def backward(self, number: int, total: DqAccumulator, k_mGD: torch.Tensor, v_mGD: torch.Tensor, out_LHD: torch.Tensor,
                 lse_LH: torch.Tensor, dout_LHD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(dk_mGD, dv_mGD) of a step, from the output and LSE over all keys. Its dq waits in `total`, or is added already, as above."""
        step = self.steps[number]
        given = total.q_LHD[step.rows], k_mGD, v_mGD, *(x[step.rows] for x in (out_LHD, lse_LH, dout_LHD))
        if step.visits:
            return total.add_onto(step, given)
        dq, dk, dv = step.call.backward(*given)
        total.waiting = step, dq, number == self.last
        return dk, dv


def cut_steps(plan: Plan, rank: int, *, merging: bool) -> dict[int, tuple[int, int, Mask]]:
    """`seen_rows` of each step of a rank."""
    return {step.number: seen_rows(step, merging=merging) for step in plan.steps(rank)}


def seen_rows(step: Step, *, merging: bool = False) -> tuple[int, int, Mask]:
    """(first, behind) of the queries that see keys of a step, and the step's mask with these alone: what its kernel is given. One that
    merges gets whole units of queries, and all where the mask is of blocks.
    """
    mask = step.mask
    if mask.grid is not None:
        if merging:
            return 0, mask.seqlen_q, mask
        rows = [np.flatnonzero(visible.any(axis=1)) for visible in mask.grid.visible]
        first = min(int(bounds[seen[0]]) for bounds, seen in zip(mask.grid.q_bounds, rows, strict=True) if len(seen))
        behind = max(int(bounds[seen[-1] + 1]) for bounds, seen in zip(mask.grid.q_bounds, rows, strict=True) if len(seen))
    else:
        bands, unit = np.concatenate(mask.groups), UNIT_ROWS if merging else 1
        first, behind = int(bands[:, Q0].min()) // unit * unit, min(-(-int(bands[:, Q1].max()) // unit) * unit, mask.seqlen_q)
    whole = first == 0 and behind == mask.seqlen_q
    return first, behind, mask if whole else mask.crop((first, behind), (0, mask.seqlen_k))
