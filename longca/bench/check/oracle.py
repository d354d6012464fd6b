"""The oracle: is a result right, and how far is it from the truth?

**Reference.** float64, by the definition of attention, over chunks of query rows, from the mask's bands or its block grid.

**Error budget.** Beside it, the same chunks are computed as a careful kernel of the cell's dtype would: float32 sums, with the
operands of the second matmuls (P, dS) and the results rounded to the dtype. The error of that emulation is what these inputs
and this mask cost in this dtype, whatever the kernel. A result may be off by

    MULTIPLE · (error of the emulation)  +  (ROUNDING · eps(dtype)  +  SUMMING · eps(float32)) · (size before cancelling)

relative to the reference; the constants stand in `longca.bench.check.tally`. The multiple leaves room for other orders of
summing and for gradients added up in the dtype; the second term for one more rounding, of scores or of dP, which unfused
attention does, and for float32 itself where the emulation happens to be exact. It goes by what was summed, not by the
sum: dS is a difference, and where the differences of a row cancel (a row with one key), no kernel can have a small
relative error.

**Rows.** In a long result one wrong row, or one wrong tile of one head, is nothing beside the norm of all. So no row may be off by more
than ROW_MULTIPLE times what the formula gives for the row itself: its own error of emulation, and as its size ‖P‖ of the row, or of the
key's column, times the usual size of what P is multiplied with.

A mask that is off by one key in each row gives an error of about 1/sqrt(keys in a row). In bf16 that shows below some
10,000 keys a row; in longer rows one wrong key drowns in rounding, and the shorter lengths of the same mask must show it.
"""

from __future__ import annotations

import math

import torch

from longca.bench.check.inputs import Inputs
from longca.bench.check.reference import HeadsReference, Reference, RowsReference
from longca.bench.check.scope import CheckedSubset, whole
from longca.bench.check.tally import EPS32, ErrorAccumulator
from longca.core.record import Accuracy
from longca.kernels.contract import Problem

FIELDS = {"out": "out_GRnD", "lse": "lse_GRn", "dq": "dq_GRnD"}


class Oracle:
    """Judge of one problem on given inputs.

    Args:
        kv_heads: KV heads to check, with their query heads; all if None.
        scope: what to check, instead (`longca.bench.check.scope.affordable`).
        reference: of the same problem, inputs and scope, where one is kept; else it is computed here.
    """

    def __init__(self, problem: Problem, inputs: Inputs, kv_heads: tuple[int, ...] | None = None,
                 scope: CheckedSubset | None = None, reference: Reference | None = None) -> None:
        self.problem, self.inputs = problem, inputs
        self.scope = whole(problem, kv_heads) if scope is None else scope
        self._reference = Reference(problem, inputs, self.scope) if reference is None else reference

    @property
    def dout_THD(self) -> torch.Tensor:
        """The output gradient that judged gradients must come from: that of the inputs, 0 in rows that are not checked."""
        if self.scope.num_rows == self.problem.mask.seqlen_q:
            return self.inputs.dout_THD
        dout = torch.zeros_like(self.inputs.dout_THD)
        for first, last in self.scope.rows:
            dout[first:last] = self.inputs.dout_THD[first:last]
        return dout

    def judge(self, out_THD: torch.Tensor, lse_TH: torch.Tensor | None = None,
              grads: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None) -> Accuracy:
        """Errors and budgets of a result, in T × heads × D.

        Args:
            grads: (dq, dk, dv) of `dout_THD`.

        Returns:
            Accuracy. A tensor with a NaN or a stray infinity anywhere has a budget and no error.
        """
        given = {"out": out_THD}
        if lse_TH is not None:
            given["lse"] = lse_TH
        if grads is not None:
            given |= dict(zip(("dq", "dk", "dv"), grads, strict=True))
        eps = torch.finfo(self.problem.dtype).eps
        tallies = {name: ErrorAccumulator(eps) for name in given}
        empty_rows_ok: list[bool] = []
        for reference in self._reference.groups():
            _Comparison(self, reference, given, tallies, empty_rows_ok).run()
        finite = {name: tally for name, tally in tallies.items()
                  if _is_finite(name, given[name]) and math.isfinite(tally.relative())}
        return Accuracy(reference="float64", scope=self.scope.text,
                        relative={name: tally.relative() for name, tally in finite.items()},
                        max_abs={name: tally.max_abs() for name, tally in finite.items()},
                        budget={name: tally.budget() for name, tally in tallies.items()},
                        worst_row={name: tally.worst_row() for name, tally in finite.items()},
                        empty_rows_ok=all(empty_rows_ok) if empty_rows_ok else None)


def wrong(accuracy: Accuracy) -> str | None:
    """Why a result is not right; None if it is."""
    reasons = []
    for name, budget in accuracy.budget.items():
        error = accuracy.relative.get(name)
        if error is None:
            reasons.append(f"{name} is not finite")
        elif not error <= budget:
            reasons.append(f"{name} is off by {error:.2e}, allowed {budget:.2e}")
        elif not accuracy.worst_row.get(name, 0.0) <= 1.0:
            reasons.append(f"a row of {name} is off by {accuracy.worst_row[name]:.3g} times what is allowed in one")
    if accuracy.empty_rows_ok is False:
        reasons.append("rows without keys must give out 0, LSE −inf and dq 0")
    return "; ".join(reasons) or None


class _Comparison:
    """Results of the KV heads under one mask against their reference, chunk by chunk."""

    def __init__(self, oracle: Oracle, reference: HeadsReference, given: dict[str, torch.Tensor], tallies: dict[str, ErrorAccumulator],
                 empty_rows_ok: list[bool]) -> None:
        self.reference, self.given, self.tallies, self.empty_rows_ok = reference, given, tallies, empty_rows_ok
        self.scale, inputs = oracle.problem.scale, oracle.inputs
        q, k, v, dout = (_usual_length(x) for x in (inputs.q_THD, inputs.k_TGD, inputs.v_TGD, inputs.dout_THD))
        dp = dout * v / oracle.problem.head_dim**0.5
        self.factors = {"out": v, "dq": dp * k * self.scale, "dk": dp * q * self.scale, "dv": dout}  # what rows of P are multiplied with
        self.lengths = {"dq": k, "dk": q}  # of the vectors that dS is multiplied with

    def run(self) -> None:
        backward = "dq" in self.given
        for chunk in self.reference.chunks(backward=backward):
            if backward:
                self._note_size(chunk)
            self._compare_rows(chunk)
        if not backward:
            return
        keys = self.reference.keys
        for name, exact, emulated in zip(("dk", "dv"), keys.exact, keys.emulated, strict=True):
            result = self.given[name][:, self.reference.kv_heads].transpose(0, 1)
            self.tallies[name].add(result, exact, emulated, self._row_size(name, keys.weight_GC))

    def _compare_rows(self, chunk: RowsReference) -> None:
        empty = chunk.exact.lse_GRn == float("-inf")
        any_empty = bool(empty.any())
        for name in FIELDS.keys() & self.given.keys():
            result = self.reference.rows(self.given[name], chunk.start, chunk.end)
            reference, emulation = getattr(chunk.exact, FIELDS[name]), getattr(chunk.emulated, FIELDS[name])
            weight = chunk.exact.weight_GRn
            if any_empty:
                nothing = float("-inf") if name == "lse" else 0.0
                self.empty_rows_ok.append(bool((result[empty] == nothing).all()))
                result, reference, emulation, weight = (x[~empty] for x in (result, reference, emulation, weight))
            if name != "lse":
                self.tallies[name].add(result, reference, emulation, self._row_size(name, weight))
                continue
            # a logarithm: its absolute error is the relative one of the sum, of size 1 in each row
            self.tallies[name].add(result[..., None], reference[..., None], emulation[..., None], reference.abs().clamp_min(1.0))
            self.tallies[name].size_squared += reference.numel()

    def _row_size(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        """Of what was summed in a row whose P has that norm, but not less than what float32 can tell from nothing."""
        return weight.clamp_min(EPS32) * self.factors[name]

    def _note_size(self, chunk: RowsReference) -> None:
        """dS before its subtraction, through a matmul with vectors of the usual length of k, or of q."""
        for name, length in self.lengths.items():
            self.tallies[name].size_squared += (chunk.dscores_norm * self.scale * length).double().square()


def _is_finite(name: str, tensor: torch.Tensor) -> bool:
    fine = torch.isfinite(tensor)
    return bool((fine | (tensor == float("-inf")) if name == "lse" else fine).all())


def _usual_length(x_THD: torch.Tensor) -> torch.Tensor:
    """Root of the mean square of the lengths of its vectors, from some of them."""
    return x_THD[:: max(len(x_THD) // 64, 1)].double().square().sum(-1).mean().sqrt()
