"""What adds up over the steps of a rank: its output with the LSE, and the gradient of its queries.

Both are sums in float32, but for what a single step says of a row, and each row's last step writes the kernels' dtype if its kernel merges:
passes over memory are what steps cost. Shapes: L queries of the rank, H query heads, D head dim.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.cp.runtime.merge import merge, no_keys

if TYPE_CHECKING:
    import torch

    from longca.cp.runtime.contributions import Contributions
    from longca.cp.runtime.kernel_call import Given
    from longca.cp.runtime.steps import LocalStep
    from longca.kernels.contract import Forward


class OutputAccumulator:
    """(out, LSE) over the keys so far."""

    def __init__(self, q_LHD: torch.Tensor, num_steps: int, visits: Contributions | None = None) -> None:
        """
        Args:
            visits: of the steps, where kernels merge.
        """
        self.q_LHD, self._num_steps, self._visits = q_LHD, num_steps, visits
        self.waiting: tuple[LocalStep, Forward] | None = None
        self._total: tuple[torch.Tensor, torch.Tensor] | None = None
        self._out: torch.Tensor | None = None
        """of rows whose steps are over, where kernels merge; in the dtype of q"""

    def merge_onto(self, step: LocalStep, k: torch.Tensor, v: torch.Tensor) -> None:
        """Has the step's kernel merge its result into the total, or write it where it is the last one of a row."""
        assert self._visits is not None
        if self._out is None:
            self._out, total = _room(self.q_LHD, self._visits)
            self._total = total, _lse(self.q_LHD, complete=self._visits.complete)
        assert self._total is not None
        q, total, lse, out = (x[step.rows] for x in (self.q_LHD, *self._total, self._out))
        step.call.forward_onto(q, k, v, total, lse, out, step.visits)

    def add(self) -> None:
        """Merges the result that is waiting, if one is."""
        if self.waiting is None:
            return
        (step, part), self.waiting = self.waiting, None
        assert part.lse is not None, "`in_parts` has been asked"
        out, lse = step.call.prepared.from_layout(part.out), step.call.prepared.lse_from_layout(part.lse)
        if self._total is None and _all_rows(step, self.q_LHD):
            out = out if self._num_steps == 1 else out.float()
            self._total = out.contiguous(), lse.masked_fill(lse == float("inf"), float("-inf")).contiguous()
        else:
            self._total = self._total or no_keys(self.q_LHD)
            total_out, total_lse = (x[step.rows] for x in self._total)
            merge(total_out, total_lse, out, lse)

    def result(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(out_LHD in the dtype of q, lse_LH in float32). Without keys: 0 and −inf."""
        out, lse = self._total or no_keys(self.q_LHD)
        return out.to(self.q_LHD.dtype) if self._out is None else self._out, lse


class DqAccumulator:
    """dq over the keys so far."""

    def __init__(self, q_LHD: torch.Tensor, visits: Contributions | None = None) -> None:
        """
        Args:
            visits: of the steps, where kernels merge.
        """
        self.q_LHD, self._visits = q_LHD, visits
        self.waiting: tuple[LocalStep, torch.Tensor, bool] | None = None
        """a step, its dq, and whether it is the last one"""
        self._total: torch.Tensor | None = None
        self._result: torch.Tensor | None = None

    def add_onto(self, step: LocalStep, given: Given) -> tuple[torch.Tensor, torch.Tensor]:
        """Has the step's kernel add its dq to the total, or write it where it is the last one of a row; (dk, dv)."""
        assert self._visits is not None
        if self._total is None or self._result is None:
            self._result, self._total = _room(self.q_LHD, self._visits)
        return step.call.backward_onto(given, self._total[step.rows], self._result[step.rows], step.visits)

    def add(self) -> None:
        """Adds the gradient that is waiting, if one is."""
        import torch

        if self.waiting is None:
            return
        (step, dq, last), self.waiting = self.waiting, None
        if self._total is None and _all_rows(step, self.q_LHD):
            self._total, self._result = (None, dq) if last else (dq.float(), None)
            return
        if self._total is None:
            self._total = torch.zeros(self.q_LHD.shape, dtype=torch.float32, device=self.q_LHD.device)
        if not last:
            self._total[step.rows].add_(dq)
            return
        self._result = self.q_LHD.new_empty(self.q_LHD.shape)
        torch.add(self._total[step.rows], dq, out=self._result[step.rows])
        for others in (slice(0, step.first), slice(step.behind, None)):
            self._result[others] = self._total[others]

    def result(self) -> torch.Tensor:
        """dq_LHD in the dtype of q, when all steps are added. Without keys: 0."""
        return self.q_LHD.new_zeros(self.q_LHD.shape) if self._result is None else self._result


def _all_rows(step: LocalStep, q_LHD: torch.Tensor) -> bool:
    return step.first == 0 and step.behind == len(q_LHD)


def _room(q_LHD: torch.Tensor, visits: Contributions) -> tuple[torch.Tensor, torch.Tensor]:
    """For results in the dtype of q, 0 if steps leave out rows; and for sums, if some row is of several steps: else the same tensor."""
    import torch

    begin = torch.empty if visits.complete else torch.zeros
    result = begin(q_LHD.shape, dtype=q_LHD.dtype, device=q_LHD.device)
    return result, torch.empty(q_LHD.shape, dtype=torch.float32, device=q_LHD.device) if visits.shared else result


def _lse(q_LHD: torch.Tensor, *, complete: bool) -> torch.Tensor:
    import torch

    lse = torch.empty(q_LHD.shape[:2], dtype=torch.float32, device=q_LHD.device)
    return lse if complete else lse.fill_(float("-inf"))
