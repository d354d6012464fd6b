"""A rank's kernel calls, one for each step: made ready once, their results put together in float32.

Shapes: L queries of the rank, H query heads, G KV heads, D head dim; n queries and m keys of one step.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from longca.cp.local_call import LocalCall
from longca.cp.running import Running
from longca.masks.band import Q0, Q1

if TYPE_CHECKING:
    import torch

    from longca.cp.plan import Plan, Step
    from longca.cp.running import RunningGradient
    from longca.kernels.contract import Kernel, Problem
    from longca.masks.mask import Mask


@dataclass(frozen=True)
class LocalStep:
    """A kernel call for the queries first..behind, the only ones that see keys of the step."""

    first: int
    behind: int
    call: LocalCall
    seen: float = 1.0
    """the share of the rank's queries that see some of its keys, at most"""

    @property
    def rows(self) -> slice:
        return slice(self.first, self.behind)


class LocalSteps:
    """The kernel calls of one rank of a plan. Steps whose masks are equal share a prepared kernel."""

    def __init__(self, plan: Plan, rank: int, problem: Problem, kernel: Kernel) -> None:
        calls: dict[str, LocalCall] = {}
        self.steps: dict[int, LocalStep] = {}
        self.cutting_ms = 0.0
        """what making the masks of the steps has taken"""
        for step in plan.steps(rank):
            start = time.perf_counter()
            first, behind, mask = seen_rows(step)
            self.cutting_ms += (time.perf_counter() - start) * 1e3
            if mask.digest not in calls:
                calls[mask.digest] = LocalCall(kernel, replace(problem, mask=mask))
            seen = plan.step_meetings[rank, step.number] / (plan.placement.num_tokens[rank] * problem.mask.num_groups)
            self.steps[step.number] = LocalStep(first, behind, calls[mask.digest], float(seen))
        self.last = max(self.steps, default=None)
        self.prepared = [call.prepared for call in calls.values()]

    def running(self, q_LHD: torch.Tensor) -> Running:
        return Running(q_LHD, len(self.steps))

    def forward(self, number: int, total: Running, k_mGD: torch.Tensor, v_mGD: torch.Tensor) -> None:
        """The step's kernel. Its result waits in `total` for `Running.add`, or is merged already by a kernel that can."""
        step = self.steps[number]
        kernel = step.call.prepared
        q, k, v = (kernel.to_layout(x) for x in (total.q_LHD[step.rows], k_mGD, v_mGD))
        if kernel.merges and len(self.steps) > 1:
            total.merge_onto(step, q, k, v, last=number == self.last)
        else:
            total.waiting = step, kernel.forward(q, k, v)

    def backward(self, number: int, total: RunningGradient, k_mGD: torch.Tensor, v_mGD: torch.Tensor, out_LHD: torch.Tensor,
                 lse_LH: torch.Tensor, dout_LHD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(dk_mGD, dv_mGD) of a step, from the output and LSE over all keys. Its dq waits in `total`, or is added already, as above."""
        step, last = self.steps[number], number == self.last
        given = total.q_LHD[step.rows], k_mGD, v_mGD, *(x[step.rows] for x in (out_LHD, lse_LH, dout_LHD))
        if step.call.prepared.merges and len(self.steps) > 1:
            return total.add_onto(step, *given, last=last)
        dq, dk, dv = step.call.backward(*given)
        total.waiting = step, dq, last
        return dk, dv


def seen_rows(step: Step) -> tuple[int, int, Mask]:
    """(first, behind) of the queries that see keys of a step, and the step's mask with these alone: what its kernel is given."""
    mask = step.mask
    if mask.grid is not None:
        rows = [np.flatnonzero(visible.any(axis=1)) for visible in mask.grid.visible]
        first = min(int(bounds[seen[0]]) for bounds, seen in zip(mask.grid.q_bounds, rows, strict=True) if len(seen))
        behind = max(int(bounds[seen[-1] + 1]) for bounds, seen in zip(mask.grid.q_bounds, rows, strict=True) if len(seen))
    else:
        bands = np.concatenate(mask.groups)
        first, behind = int(bands[:, Q0].min()), int(bands[:, Q1].max())
    whole = first == 0 and behind == mask.seqlen_q
    return first, behind, mask if whole else mask.crop((first, behind), (0, mask.seqlen_k))
