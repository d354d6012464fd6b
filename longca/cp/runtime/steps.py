"""The kernel calls of a rank, one for each step: prepared once, with results accumulated in float32.

Shapes: L queries of the rank, H query heads, G KV heads, D head dim; n queries and m keys of one step.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from longca.cp.runtime.accumulate import DqAccumulator, OutputAccumulator, contributions_of
from longca.cp.runtime.kernel_call import LocalCall
from longca.kernels import UNIT_ROWS
from longca.masks.band import Q0, Q1

if TYPE_CHECKING:
    import torch

    from longca.cp.schedule.plan import Plan, Step
    from longca.kernels import Contribution, Kernel, Problem
    from longca.masks import Mask


@dataclass(frozen=True)
class LocalStep:
    """A kernel call for the queries start..end, which are all queries that see keys of the step."""

    start: int
    end: int
    call: LocalCall
    contributions: tuple[Contribution, ...] = ()
    """row ranges for a kernel that merges, relative to `start`; empty for others"""

    @property
    def rows(self) -> slice:
        return slice(self.start, self.end)


class LocalSteps:
    """The kernel calls of one rank of a plan. Steps with equal masks share a prepared kernel."""

    def __init__(self, plan: Plan, rank: int, problem: Problem, kernel: Kernel) -> None:
        start_s = time.perf_counter()
        parts = step_masks(plan, rank, merging=kernel.merges)
        self._contributions = (
            contributions_of(parts, int(plan.sharding.num_tokens[rank]))
            if kernel.merges and len(parts) > 1
            else None
        )
        self.masks_ms = (time.perf_counter() - start_s) * 1e3
        """time to build the masks of the steps"""
        masks = {mask.digest: mask for _, _, mask in parts.values()}
        calls = {digest: LocalCall(kernel, replace(problem, mask=mask)) for digest, mask in masks.items()}
        self.steps = {
            number: LocalStep(
                start,
                end,
                calls[mask.digest],
                self._contributions.of_step[number] if self._contributions else (),
            )
            for number, (start, end, mask) in parts.items()
        }
        for step in self.steps.values():
            step.call.prepared.expect(step.contributions)
        self.last = max(self.steps, default=None)
        self.prepared = [call.prepared for call in calls.values()]

    def output_accumulator(self, q_LHD: torch.Tensor) -> OutputAccumulator:
        return OutputAccumulator(q_LHD, len(self.steps), self._contributions)

    def dq_accumulator(self, q_LHD: torch.Tensor) -> DqAccumulator:
        return DqAccumulator(q_LHD, self._contributions)

    def forward(
        self, number: int, total: OutputAccumulator, k_mGD: torch.Tensor, v_mGD: torch.Tensor
    ) -> None:
        """Runs the step's kernel. Its result is pending in `total` until `OutputAccumulator.add`, unless the
        kernel merges."""
        step = self.steps[number]
        if step.contributions:
            total.merge_onto(step.rows, step.call, step.contributions, k_mGD, v_mGD)
        else:
            total.waiting = (
                step.rows,
                step.call,
                step.call.forward_in_layout(total.q_LHD[step.rows], k_mGD, v_mGD),
            )

    def backward(
        self,
        number: int,
        total: DqAccumulator,
        k_mGD: torch.Tensor,
        v_mGD: torch.Tensor,
        out_LHD: torch.Tensor,
        lse_LH: torch.Tensor,
        dout_LHD: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(dk_mGD, dv_mGD) of a step, from the output and LSE over all keys. Its dq is pending in `total`,
        unless the kernel merges."""
        step = self.steps[number]
        given: Any = (
            total.q_LHD[step.rows],
            k_mGD,
            v_mGD,
            *(x[step.rows] for x in (out_LHD, lse_LH, dout_LHD)),
        )
        if step.contributions:
            return total.add_onto(step.rows, step.call, step.contributions, given)
        dq, dk, dv = step.call.backward(*given)
        total.waiting = step.rows, dq, number == self.last
        return dk, dv


def step_masks(plan: Plan, rank: int, *, merging: bool) -> dict[int, tuple[int, int, Mask]]:
    """`active_rows` of each step of a rank, by the number of the step."""
    return {step.number: active_rows(step, merging=merging) for step in plan.steps(rank)}


def active_rows(step: Step, *, merging: bool = False) -> tuple[int, int, Mask]:
    """(start, end) of the queries that see keys of a step, and the step's mask for these queries: the inputs
    of its kernel.

    Args:
        merging: for a kernel that merges: starts and ends are whole units of `UNIT_ROWS`, and a mask of
            blocks keeps all queries.
    """
    mask = step.mask
    if mask.grid is not None:
        if merging:
            return 0, mask.seqlen_q, mask
        rows = [np.flatnonzero(visible.any(axis=1)) for visible in mask.grid.visible]
        start = min(
            int(bounds[seen[0]]) for bounds, seen in zip(mask.grid.q_bounds, rows, strict=True) if len(seen)
        )
        end = max(
            int(bounds[seen[-1] + 1])
            for bounds, seen in zip(mask.grid.q_bounds, rows, strict=True)
            if len(seen)
        )
    else:
        bands = np.concatenate(mask.groups)
        unit = UNIT_ROWS if merging else 1
        start = int(bands[:, Q0].min()) // unit * unit
        end = min(-(-int(bands[:, Q1].max()) // unit) * unit, mask.seqlen_q)
    whole = start == 0 and end == mask.seqlen_q
    return start, end, mask if whole else mask.crop((start, end), (0, mask.seqlen_k))
