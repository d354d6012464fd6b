"""Accumulation of the output with its LSE, and of dq, over the steps of a rank.

Sums are in float32. There are two methods:

- The kernel returns a step's result, and `merge` or an addition adds it to the sum: two passes over memory
  for each step.
- The kernel merges in its epilogue (`Kernel.merges`). `Contributions` define which rows to begin, to merge
  and to finish; the last step of a row writes the dtype of q. Rows of a single step then have no extra cost.

Shapes: L queries of the rank, H query heads, D head dim.

One kernel call on some of the queries and some of the keys, as a part of attention over all keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from longca.kernels import UNIT_ROWS, Contribution
from longca.masks import Mask
from longca.masks.band import Q0, Q1

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch

    from longca.kernels import Contribution, Forward, Kernel, Prepared, Problem

    Given = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
    """(q, k, v, out, LSE, dout)"""


# costs that are summed over calls; for others the largest counts
SUMMED = ("plan_ms", "compile_ms", "metadata_bytes")


def sum_of_costs(prepared: Iterable[Prepared]) -> dict[str, float]:
    """The costs of several prepared kernels of one rank."""
    total: dict[str, float] = {}
    for one in prepared:
        for name, cost in one.costs.items():
            total[name] = total.get(name, 0.0) + cost if name in SUMMED else max(total.get(name, 0.0), cost)
    return total


class LocalCall:
    """A prepared kernel with tensors as T × heads × D and T × H. Conversion to the kernel's layout is part of
    the call."""

    def __init__(self, kernel: Kernel, problem: Problem) -> None:
        self.prepared: Prepared = kernel.prepare(problem)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(out, LSE)."""
        return self.from_layout(self.forward_in_layout(q, k, v))

    def forward_in_layout(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Forward:
        """The result in the kernel's layout, for `from_layout`; messages may be posted between the two
        calls."""
        return self.prepared.forward(*(self.prepared.to_layout(x) for x in (q, k, v)))

    def from_layout(self, result: Forward) -> tuple[torch.Tensor, torch.Tensor]:
        """(out, LSE)."""
        assert result.lse is not None, "a kernel without LSE has been refused"
        return self.prepared.from_layout(result.out), self.prepared.lse_from_layout(result.lse)

    def backward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        dout: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(dq, dk, dv) from the output and LSE over all keys."""
        grads = self.prepared.raw_backward(*self._laid_out(q, k, v, out, lse, dout))
        dq, dk, dv = (self.prepared.from_layout(grad) for grad in grads)
        return dq, dk, dv

    def forward_onto(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        total: torch.Tensor,
        lse: torch.Tensor,
        out: torch.Tensor,
        contributions: Sequence[Contribution],
    ) -> None:
        """`Prepared.forward_onto`, for kernels that merge."""
        q, k, v = (self.prepared.to_layout(x) for x in (q, k, v))
        self.prepared.forward_onto(q, k, v, total, lse, out, contributions)

    def backward_onto(
        self, given: Given, total: torch.Tensor, dq: torch.Tensor, contributions: Sequence[Contribution]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`Prepared.backward_onto`, for kernels that merge: (dk, dv) from the inputs of `backward`."""
        dk, dv = self.prepared.backward_onto(*self._laid_out(*given), total, dq, contributions)
        return self.prepared.from_layout(dk), self.prepared.from_layout(dv)

    def _laid_out(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        dout: torch.Tensor,
    ) -> Given:
        q, k, v, out, dout = (self.prepared.to_layout(x) for x in (q, k, v, out, dout))
        return q, k, v, out, self.prepared.lse_to_layout(lse), dout


def no_keys(q_LHD: torch.Tensor, dtype: torch.dtype | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, LSE) of these queries over no keys: 0 and −inf, the initial values for merging. float32 by
    default."""
    import torch

    dtype = dtype or torch.float32
    lse = torch.full(q_LHD.shape[:2], -torch.inf, dtype=dtype, device=q_LHD.device)
    return torch.zeros(q_LHD.shape, dtype=dtype, device=q_LHD.device), lse


def merge(
    out_LHD: torch.Tensor, lse_LH: torch.Tensor, part_LHD: torch.Tensor, part_lse_LH: torch.Tensor
) -> None:
    """Merges a result over other keys into (out, LSE), in place. `longca.ops.band.merge` does the same on
    GPUs in one pass.

    (out, LSE) are float32 or wider for any dtype of the parts: in bfloat16 their error would grow with the
    number of parts. A row without keys has output 0 and LSE −inf in both inputs and in the result; in the
    part its LSE may also be +inf, which some kernels write. No row becomes NaN.
    """
    import torch

    if out_LHD.is_cuda:
        from longca.ops import merge_parts

        merge_parts(out_LHD, lse_LH, part_LHD, part_lse_LH)
        return

    part_lse = part_lse_LH.to(lse_LH.dtype)
    part_lse = part_lse.masked_fill(part_lse == torch.inf, -torch.inf)
    base = torch.maximum(lse_LH, part_lse)
    base = base.masked_fill(base == -torch.inf, 0.0)  # −inf minus −inf would be NaN
    kept = (lse_LH - base).exp()
    new = (part_lse - base).exp()
    total = kept + new
    share = new / total.masked_fill(total == 0, 1.0)
    out_LHD.lerp_(part_LHD.to(out_LHD.dtype), share[..., None])
    torch.add(base, total.log(), out=lse_LH)


@dataclass(frozen=True)
class Contributions:
    """The row ranges of all steps of a rank, for kernels that merge."""

    of_step: dict[int, tuple[Contribution, ...]]
    complete: bool
    """True if every row is in some step"""
    shared: bool
    """True if some rows are in several steps"""


def contributions_of(steps: Mapping[int, tuple[int, int, Mask]], num_rows: int) -> Contributions:
    """
    Args:
        steps: (start, end, mask) of each step, in order: its rows, and the mask of these rows. Starts are
            multiples of `UNIT_ROWS`; a step whose mask is of blocks has all rows.
    """
    seen = np.array([_active_units(start, mask, num_rows) for start, _, mask in steps.values()])
    seen = seen.reshape(len(steps), -(-num_rows // UNIT_ROWS))
    is_first, is_last = (np.cumsum(seen[::way], axis=0)[::way] == 1 for way in (1, -1))
    contributions = {}
    for index, (number, (start, end, _)) in enumerate(steps.items()):
        kinds = {
            (first, last): seen[index] & (is_first[index] == first) & (is_last[index] == last)
            for first, last in product((True, False), repeat=2)
        }
        contributions[number] = tuple(
            Contribution(first, last, _row_ranges(units, start, end))
            for (first, last), units in kinds.items()
            if units.any()
        )
    return Contributions(contributions, bool(seen.any(axis=0).all()), bool((seen.sum(axis=0) > 1).any()))


def _active_units(start: int, mask: Mask, num_rows: int) -> np.ndarray:
    """For each unit of rows, True if the mask has a band there, (U,) bool. In a mask of blocks all units are
    active."""
    count = np.zeros(-(-num_rows // UNIT_ROWS) + 1, dtype=np.int64)
    if mask.grid is not None:
        return count[1:] == 0
    bands = np.concatenate(mask.groups)
    np.add.at(count, (start + bands[:, Q0]) // UNIT_ROWS, 1)
    np.add.at(count, -(-(start + bands[:, Q1]) // UNIT_ROWS), -1)
    return np.cumsum(count)[:-1] > 0


def _row_ranges(units: np.ndarray, start: int, end: int) -> tuple[tuple[int, int], ...] | None:
    """The rows of these units, relative to `start`; None if they are all rows up to `end`."""
    edges = np.flatnonzero(np.diff(units.astype(np.int8), prepend=0, append=0)) * UNIT_ROWS
    ranges = tuple((int(first) - start, min(int(last), end) - start) for first, last in edges.reshape(-1, 2))
    return None if ranges == ((0, end - start),) else ranges


class OutputAccumulator:
    """(out, LSE) over the keys of the steps so far."""

    def __init__(
        self, q_LHD: torch.Tensor, num_steps: int, contributions: Contributions | None = None
    ) -> None:
        """
        Args:
            contributions: of all steps, for kernels that merge.
        """
        self.q_LHD = q_LHD
        self._num_steps = num_steps
        self._contributions = contributions
        self.waiting: tuple[slice, LocalCall, Forward] | None = None
        """rows, call and result of a step, in the kernel's layout, until `add`"""
        self._total: tuple[torch.Tensor, torch.Tensor] | None = None
        self._out: torch.Tensor | None = None
        """for kernels that merge: the finished rows, in the dtype of q"""

    def merge_onto(
        self,
        rows: slice,
        call: LocalCall,
        contributions: Sequence[Contribution],
        k: torch.Tensor,
        v: torch.Tensor,
    ) -> None:
        """Lets the kernel merge a step's result into the total, or write rows in their last step."""
        assert self._contributions is not None
        if self._out is None:
            self._out, total = _result_and_sums(self.q_LHD, self._contributions)
            self._total = total, _empty_lse(self.q_LHD, complete=self._contributions.complete)
        assert self._total is not None
        q, total, lse, out = (x[rows] for x in (self.q_LHD, *self._total, self._out))
        call.forward_onto(q, k, v, total, lse, out, contributions)

    def add(self) -> None:
        """Merges the pending result, if any."""
        if self.waiting is None:
            return
        rows, call, result = self.waiting
        self.waiting = None
        out, lse = call.from_layout(result)
        if self._total is None and _all_rows(rows, self.q_LHD):
            out = out if self._num_steps == 1 else out.float()
            self._total = out.contiguous(), lse.masked_fill(lse == float("inf"), float("-inf")).contiguous()
        else:
            self._total = self._total or no_keys(self.q_LHD)
            total_out, total_lse = (x[rows] for x in self._total)
            merge(total_out, total_lse, out, lse)

    def result(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(out_LHD in the dtype of q, lse_LH in float32). Rows without keys: 0 and −inf."""
        out, lse = self._total or no_keys(self.q_LHD)
        return out.to(self.q_LHD.dtype) if self._out is None else self._out, lse


class DqAccumulator:
    """dq over the keys of the steps so far."""

    def __init__(self, q_LHD: torch.Tensor, contributions: Contributions | None = None) -> None:
        """
        Args:
            contributions: of all steps, for kernels that merge.
        """
        self.q_LHD = q_LHD
        self._contributions = contributions
        self.waiting: tuple[slice, torch.Tensor, bool] | None = None
        """rows of a step, its dq, and True for the last step, until `add`"""
        self._total: torch.Tensor | None = None
        self._result: torch.Tensor | None = None

    def add_onto(
        self, rows: slice, call: LocalCall, contributions: Sequence[Contribution], given: Given
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Lets the kernel add a step's dq to the total, or write rows in their last step. Returns (dk,
        dv)."""
        assert self._contributions is not None
        if self._total is None or self._result is None:
            self._result, self._total = _result_and_sums(self.q_LHD, self._contributions)
        return call.backward_onto(given, self._total[rows], self._result[rows], contributions)

    def add(self) -> None:
        """Adds the pending gradient, if any."""
        import torch

        if self.waiting is None:
            return
        rows, dq, last = self.waiting
        self.waiting = None
        if self._total is None and _all_rows(rows, self.q_LHD):
            self._total, self._result = (None, dq) if last else (dq.float(), None)
            return
        if self._total is None:
            self._total = torch.zeros(self.q_LHD.shape, dtype=torch.float32, device=self.q_LHD.device)
        if not last:
            self._total[rows].add_(dq)
            return
        self._result = self.q_LHD.new_empty(self.q_LHD.shape)
        torch.add(self._total[rows], dq, out=self._result[rows])
        for others in (slice(0, rows.start), slice(rows.stop, None)):
            self._result[others] = self._total[others]

    def result(self) -> torch.Tensor:
        """dq_LHD in the dtype of q, when all steps are added. Rows without keys: 0."""
        return self.q_LHD.new_zeros(self.q_LHD.shape) if self._result is None else self._result


def _all_rows(rows: slice, q_LHD: torch.Tensor) -> bool:
    return rows.start == 0 and rows.stop == len(q_LHD)


def _result_and_sums(q_LHD: torch.Tensor, contributions: Contributions) -> tuple[torch.Tensor, torch.Tensor]:
    """(tensor for finished rows in the dtype of q, tensor for sums in float32), for kernels that merge.

    The first is zeroed if some rows are in no step. If no row is in several steps, no sums are needed and
    both are the same tensor.
    """
    import torch

    new = torch.empty if contributions.complete else torch.zeros
    result = new(q_LHD.shape, dtype=q_LHD.dtype, device=q_LHD.device)
    return result, torch.empty(
        q_LHD.shape, dtype=torch.float32, device=q_LHD.device
    ) if contributions.shared else result


def _empty_lse(q_LHD: torch.Tensor, *, complete: bool) -> torch.Tensor:
    import torch

    lse = torch.empty(q_LHD.shape[:2], dtype=torch.float32, device=q_LHD.device)
    return lse if complete else lse.fill_(float("-inf"))
