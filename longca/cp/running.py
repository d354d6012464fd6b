"""What adds up over the steps of a rank: its output with the LSE, and the gradient of its queries.

Both are sums in float32, but for the first and the last step, which read and write the kernels' dtype: passes over memory are what steps
cost. Shapes: L queries of the rank, H query heads, D head dim.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.cp.merge import merge, no_keys

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
        first = self._total is None and self._all_rows(step)
        self._total = self._total or (_empty(self.q_LHD) if first else no_keys(self.q_LHD))
        total, lse = (x[step.first:step.behind] for x in self._total)
        self._out = self.q_LHD.new_empty(self.q_LHD.shape) if last else None
        into = None if self._out is None else self._out[step.first:step.behind]
        step.call.prepared.forward_onto(q, k, v, total, lse, first=first, into=into)
        if self._out is not None:
            _copy_others(self._out, self._total[0], slice(step.first, step.behind))

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
        return out.to(self.q_LHD.dtype) if self._out is None else self._out, lse

    def _all_rows(self, step: LocalStep) -> bool:
        return step.first == 0 and step.behind == len(self.q_LHD)


class RunningGradient:
    """dq over the keys so far."""

    def __init__(self, q_LHD: torch.Tensor) -> None:
        self._q = q_LHD
        self._total: torch.Tensor | None = None
        self._result: torch.Tensor | None = None

    def add(self, rows: slice, dq_nHD: torch.Tensor, *, last: bool) -> None:
        """A step's, for some of the queries; once for each step, the last one said to be it."""
        import torch

        whole = len(dq_nHD) == len(self._q)
        if self._total is None and whole:
            self._total, self._result = (None, dq_nHD) if last else (dq_nHD.float(), None)
            return
        if self._total is None:
            self._total = torch.zeros(self._q.shape, dtype=torch.float32, device=self._q.device)
        if not last:
            self._total[rows].add_(dq_nHD)
            return
        self._result = self._q.new_empty(self._q.shape)
        torch.add(self._total[rows], dq_nHD, out=self._result[rows])
        _copy_others(self._result, self._total, rows)

    def result(self) -> torch.Tensor:
        """dq_LHD in the dtype of q, when all steps are added. Without keys: 0."""
        return self._q.new_zeros(self._q.shape) if self._result is None else self._result


def _empty(q_LHD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    out, lse = (torch.empty(shape, dtype=torch.float32, device=q_LHD.device) for shape in (q_LHD.shape, q_LHD.shape[:2]))
    return out, lse


def _copy_others(x: torch.Tensor, total: torch.Tensor, rows: slice) -> None:
    """Of a total all rows but these."""
    for others in (slice(0, rows.start), slice(rows.stop, None)):
        x[others] = total[others]
