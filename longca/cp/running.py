"""What adds up over the steps of a rank: its output with the LSE, and the gradient of its queries.

Both are sums in float32, but for the first and the last step, which read and write the kernels' dtype: passes over memory are what steps
cost. Shapes: L queries of the rank, H query heads, D head dim.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.cp.merge import merge, no_keys

MOST = 0.5  # of a rank's rows

if TYPE_CHECKING:
    import torch

    from longca.cp.local_steps import LocalStep
    from longca.kernels.contract import Forward


class Running:
    """(out, LSE) over the keys so far."""

    def __init__(self, q_LHD: torch.Tensor, num_steps: int) -> None:
        self.q_LHD, self._num_steps = q_LHD, num_steps
        self.waiting: tuple[LocalStep, Forward] | None = None
        self._total: tuple[torch.Tensor, torch.Tensor] | None = None
        self._out: torch.Tensor | None = None
        """when all steps are merged, in the dtype of q"""

    def merge_onto(self, step: LocalStep, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, last: bool) -> None:
        """Has the step's kernel merge its result into the total, or bring both together to the dtype of q if it is the last one."""
        first = self._total is None and _all_rows(step, self.q_LHD)
        self._total = self._total or (_empty(self.q_LHD) if first else no_keys(self.q_LHD))
        total, lse = (x[step.rows] for x in self._total)
        self._out = _last(step, self.q_LHD) if last else None
        step.call.prepared.forward_onto(q, k, v, total, lse, first=first, into=None if self._out is None else self._out[step.rows])
        if self._out is not None:
            _copy_others(self._out, self._total[0], step.rows)

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


class RunningGradient:
    """dq over the keys so far."""

    def __init__(self, q_LHD: torch.Tensor) -> None:
        self.q_LHD = q_LHD
        self.waiting: tuple[LocalStep, torch.Tensor, bool] | None = None
        """a step, its dq, and whether it is the last one"""
        self._total: torch.Tensor | None = None
        self._result: torch.Tensor | None = None

    def add_onto(self, step: LocalStep, *given: torch.Tensor, last: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Has the step's kernel add its dq to the total, or bring both together to the dtype of q if it is the last one; (dk, dv)."""
        import torch

        first = self._total is None and _all_rows(step, self.q_LHD)
        if self._total is None:
            begin = torch.empty if first else torch.zeros
            self._total = begin(self.q_LHD.shape, dtype=torch.float32, device=self.q_LHD.device)
        self._result = _last(step, self.q_LHD) if last else None
        into = None if self._result is None else self._result[step.rows]
        grads = step.call.backward_onto(*given, dq=self._total[step.rows], first=first, into=into)
        if self._result is not None:
            _copy_others(self._result, self._total, step.rows)
        return grads

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
        _copy_others(self._result, self._total, step.rows)

    def result(self) -> torch.Tensor:
        """dq_LHD in the dtype of q, when all steps are added. Without keys: 0."""
        if self._result is not None:
            return self._result
        return self.q_LHD.new_zeros(self.q_LHD.shape) if self._total is None else self._total.to(self.q_LHD.dtype)


def _all_rows(step: LocalStep, q_LHD: torch.Tensor) -> bool:
    return step.first == 0 and step.behind == len(q_LHD)


def _last(step: LocalStep, q_LHD: torch.Tensor) -> torch.Tensor | None:
    """Room for the results over all steps, if the last one sees most rows; where it does not, kernels leave out those that it does not."""
    return q_LHD.new_empty(q_LHD.shape) if step.seen >= MOST else None


def _empty(q_LHD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    out, lse = (torch.empty(shape, dtype=torch.float32, device=q_LHD.device) for shape in (q_LHD.shape, q_LHD.shape[:2]))
    return out, lse


def _copy_others(x: torch.Tensor, total: torch.Tensor, rows: slice) -> None:
    """Of a total all rows but these."""
    for others in (slice(0, rows.start), slice(rows.stop, None)):
        x[others] = total[others]
