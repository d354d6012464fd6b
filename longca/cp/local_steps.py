"""A rank's kernel calls, one for each step: made ready once, their results put together in float32.

Shapes: L queries of the rank, H query heads, G KV heads, D head dim; n queries and m keys of one step.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from longca.cp.local_call import LocalCall
from longca.cp.merge import merge, no_keys
from longca.masks.band import Q0, Q1

if TYPE_CHECKING:
    import torch

    from longca.cp.plan import Plan, Step
    from longca.kernels.contract import Forward, Kernel, Problem
    from longca.masks.mask import Mask

    Grads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class LocalStep:
    """A kernel call for the queries first..behind, the only ones that see keys of the step."""

    first: int
    behind: int
    call: LocalCall


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
            self.steps[step.number] = LocalStep(first, behind, calls[mask.digest])
        self.prepared = [call.prepared for call in calls.values()]

    def running(self, q_LHD: torch.Tensor) -> Running:
        return Running(q_LHD, len(self.steps))

    def forward(self, number: int, total: Running, k_mGD: torch.Tensor, v_mGD: torch.Tensor) -> None:
        """The step's kernel. Its result waits in `total` for `Running.add`, or is merged already by a kernel that can."""
        step = self.steps[number]
        kernel = step.call.prepared
        q, k, v = (kernel.to_layout(x) for x in (total.q_LHD[step.first:step.behind], k_mGD, v_mGD))
        if kernel.merges and len(self.steps) > 1:
            total.merge_onto(step, q, k, v)
        else:
            total.waiting = step, kernel.forward(q, k, v)

    def backward(self, number: int, q_LHD: torch.Tensor, k_mGD: torch.Tensor, v_mGD: torch.Tensor, out_LHD: torch.Tensor,
                 lse_LH: torch.Tensor, dout_LHD: torch.Tensor) -> Grads:
        """(dq_nHD, dk_mGD, dv_mGD) of a step, from the output and LSE over all keys."""
        rows = self.rows(number)
        return self.steps[number].call.backward(q_LHD[rows], k_mGD, v_mGD, out_LHD[rows], lse_LH[rows], dout_LHD[rows])

    def rows(self, number: int) -> slice:
        return slice(self.steps[number].first, self.steps[number].behind)


class Running:
    """(out, LSE) over the keys so far."""

    def __init__(self, q_LHD: torch.Tensor, num_steps: int) -> None:
        self.q_LHD, self._num_steps = q_LHD, num_steps
        self.waiting: tuple[LocalStep, Forward] | None = None
        self._total: tuple[torch.Tensor, torch.Tensor] | None = None

    def merge_onto(self, step: LocalStep, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Has the step's kernel merge its result into the total."""
        first = self._total is None and self._all_rows(step)
        self._total = self._total or (_empty(self.q_LHD) if first else no_keys(self.q_LHD))
        out, lse = (x[step.first:step.behind] for x in self._total)
        step.call.prepared.forward_onto(q, k, v, out, lse, first=first)

    def add(self) -> None:
        """Merges the result that is waiting, if one is."""
        if self.waiting is None:
            return
        (step, part), self.waiting = self.waiting, None
        assert part.lse is not None, "`in_parts` has been asked"
        out, lse = step.call.prepared.from_layout(part.out), step.call.prepared.lse_from_layout(part.lse)
        if self._total is None and self._all_rows(step):
            out = out if self._num_steps == 1 else out.float()
            self._total = out.contiguous(), lse.masked_fill(lse == float("inf"), float("-inf")).contiguous()
        else:
            self._total = self._total or no_keys(self.q_LHD)
            total_out, total_lse = (x[step.first:step.behind] for x in self._total)
            merge(total_out, total_lse, out, lse)

    def result(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(out_LHD in the dtype of q, lse_LH in float32). Without keys: 0 and −inf."""
        out, lse = self._total or no_keys(self.q_LHD)
        return out.to(self.q_LHD.dtype), lse

    def _all_rows(self, step: LocalStep) -> bool:
        return step.first == 0 and step.behind == len(self.q_LHD)


def _empty(q_LHD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    out, lse = (torch.empty(shape, dtype=torch.float32, device=q_LHD.device) for shape in (q_LHD.shape, q_LHD.shape[:2]))
    return out, lse


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
