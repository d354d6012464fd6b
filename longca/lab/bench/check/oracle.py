"""The oracle decides whether a result is correct, and measures its error against a float64 reference.

**Reference.** float64, by the definition of attention, over chunks of query rows, from the mask's bands or
its block grid.

**Error budget.** The same chunks are also computed as a careful kernel of the cell's dtype would compute
them: float32 sums, with the operands of the second matmuls (P, dS) and the results rounded to the dtype. The
error of that emulation is the cost of this dtype for these inputs and this mask, for any kernel. A result may
be off by

    MULTIPLE · (error of the emulation)  +  (ROUNDING · eps(dtype)  +  SUMMING · eps(float32)) · (size before cancelling)

relative to the reference; the constants are in `longca.lab.bench.check.tally`. The multiple leaves room for
other orders of summation and for gradients that are summed in the dtype. The second term leaves room for one
more rounding, of scores or of dP, as unfused attention has it, and for float32 itself where the emulation
happens to be exact. This term uses the size of the summands, not of the
sum: dS is a difference, and where the differences of a row cancel (a row with one key), no kernel can have a
    small relative error.

**Rows.** In a long result one wrong row, or one wrong tile of one head, is very small compared with the norm
of the whole. So no row may be off by more than ROW_MULTIPLE times the budget of the row itself. That budget
has the row's own emulation error. As its size it has ‖P‖ of the row, or of the key's column, times the RMS
size of the vectors that P is multiplied with.

**Parts.** The same rule holds for each head, and for each column and each tile of 64 rows, over all heads and in
single ones. The multiple is 1.5 for a head or a tile of many rows, 6 for a column of many rows, and more for fewer
rows, to ROW_MULTIPLE for a single one: see `longca.lab.bench.check.part_errors`.

A mask that is off by one key in each row gives an error of about 1/sqrt(keys in a row). In bf16 this is
detected below some 10,000 keys a row. In longer rows one wrong key is smaller than the rounding; there the
shorter lengths of the same mask must detect the mistake.
"""  # noqa: E501

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from functools import cached_property

import torch

from longca.kernels import Problem
from longca.lab.bench.check.inputs import Inputs
from longca.lab.bench.check.part_errors import TensorPlace
from longca.lab.bench.check.reference import HeadKeys, HeadsReference, Reference, RowsReference, index_of
from longca.lab.bench.check.scope import CheckedSubset, whole
from longca.lab.bench.check.tally import EPS32, ErrorAccumulator
from longca.lab.studies import Accuracy

FIELDS = {"out": "out_GRnD", "lse": "lse_GRn", "dq": "dq_GRnD"}
Grads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
PartResult = dict[str, torch.Tensor]
"""of one part of the checked subset: out, lse and dq as rows × its query heads (× D), dk and dv as keys × its
KV heads × D"""


def tensors_of(out: torch.Tensor, lse: torch.Tensor | None, grads: Grads | None) -> dict[str, torch.Tensor]:
    """The tensors of a result by name."""
    lse_and_grads = {"lse": lse} if lse is not None else {}
    return {
        "out": out,
        **lse_and_grads,
        **(dict(zip(("dq", "dk", "dv"), grads, strict=True)) if grads is not None else {}),
    }


def cut(scope: CheckedSubset, ratio: int, tensors: dict[str, torch.Tensor]) -> list[PartResult]:
    """The checked parts of a result.

    Args:
        ratio: query heads per KV head.
        tensors: out, lse, dq, dk, dv by name, in T × heads (× D).
    """
    results = []
    for part in scope.parts:
        kv_heads = list(part.kv_heads)
        q_heads = part.q_heads(ratio)
        results.append(
            {
                name: x[:, kv_heads] if name in ("dk", "dv") else x[index_of(part.rows, x.device)][:, q_heads]
                for name, x in tensors.items()
            }
        )
    return results


def checked_dout(scope: CheckedSubset, ratio: int, dout_THD: torch.Tensor) -> torch.Tensor:
    """The output gradient of the checked call: 0 in rows that are not checked."""
    if not scope.is_sample:
        return dout_THD
    dout = torch.zeros_like(dout_THD)
    for part in scope.parts:
        rows = torch.tensor(part.rows)[:, None]
        heads = torch.tensor(part.q_heads(ratio))[None]
        dout[rows, heads] = dout_THD[rows, heads]
    return dout


def finite(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """For each tensor of a result, if it has no NaN and no stray infinity. On its device, so that nothing
    waits."""
    return {name: _is_finite(name, x) for name, x in tensors.items()}


class Oracle:
    """Judges results of one problem on given inputs.

    Args:
        kv_heads: KV heads to check, with their query heads; all if None.
        scope: the subset to check, instead of `kv_heads` (`longca.lab.bench.check.scope.affordable`).
        reference: a kept reference of the same problem, inputs and scope; computed here if not given.
        keys_of: KV heads of which the reference of dk and dv is kept in `keys`, once gradients were judged.
    """

    def __init__(
        self,
        problem: Problem,
        inputs: Inputs,
        kv_heads: tuple[int, ...] | None = None,
        scope: CheckedSubset | None = None,
        reference: Reference | None = None,
        keys_of: Collection[int] = (),
    ) -> None:
        self.problem = problem
        self.inputs = inputs
        self.scope = whole(problem, kv_heads) if scope is None else scope
        self._ratio = problem.num_q_heads // problem.num_kv_heads
        self._reference = Reference(problem, inputs, self.scope) if reference is None else reference
        self._keys_of = keys_of
        self.keys: dict[int, HeadKeys] = {}

    @property
    def dout_THD(self) -> torch.Tensor:
        """The output gradient for which gradients are judged: that of the inputs, but 0 in rows that are not
        checked."""
        return checked_dout(self.scope, self._ratio, self.inputs.dout_THD)

    @cached_property
    def usual_lengths(self) -> dict[str, torch.Tensor]:
        """RMS lengths of the vectors of q, k, v and dout."""
        inputs = self.inputs
        tensors = {"q": inputs.q_THD, "k": inputs.k_TGD, "v": inputs.v_TGD, "dout": inputs.dout_THD}
        return {name: _usual_length(x) for name, x in tensors.items()}

    @cached_property
    def row_factors(self) -> dict[str, torch.Tensor]:
        """RMS size of what P is multiplied with, by the tensor that results."""
        length = self.usual_lengths
        scale = self.problem.scale
        dp = length["dout"] * length["v"] / self.problem.head_dim**0.5
        return {
            "out": length["v"],
            "dq": dp * length["k"] * scale,
            "dk": dp * length["q"] * scale,
            "dv": length["dout"],
        }

    def judge(
        self, out_THD: torch.Tensor, lse_TH: torch.Tensor | None = None, grads: Grads | None = None
    ) -> Accuracy:
        """Errors and budgets of a result, in T × heads × D.

        Args:
            grads: (dq, dk, dv) of `dout_THD`.

        Returns:
            Accuracy. A tensor with a NaN or a stray infinity anywhere has a budget and no error.
        """
        tensors = tensors_of(out_THD, lse_TH, grads)
        return self.judge_parts(cut(self.scope, self._ratio, tensors), finite(tensors))

    def judge_parts(
        self, results: list[PartResult], are_finite: Mapping[str, bool | torch.Tensor], *, keys: bool = True
    ) -> Accuracy:
        """The same for a result of which only the checked parts are here.

        Args:
            results: one for each part of the scope.
            are_finite: of the whole tensors, by name.
            keys: dk and dv are among the results of a backward; the output gradient is that of `dout_THD`.
        """
        eps = torch.finfo(self.problem.dtype).eps
        errors = {name: ErrorAccumulator(eps) for name in are_finite}
        empty_rows_ok: list[bool] = []
        for reference, result in zip(self._reference.groups(), results, strict=True):
            _Comparison(self, reference, result, errors, empty_rows_ok).run(keys=keys)
            if keys and "dq" in result:
                self.keys |= {
                    head: reference.keys.of_head(number)
                    for number, head in enumerate(reference.kv_heads)
                    if head in self._keys_of
                }
        known = {
            name: error
            for name, error in errors.items()
            if are_finite[name] and math.isfinite(error.relative())
        }
        parts = {name: error.worst_part() for name, error in known.items()}
        return Accuracy(
            reference="float64",
            scope=self.scope.text,
            relative={name: error.relative() for name, error in known.items()},
            max_abs={name: error.max_abs() for name, error in known.items()},
            budget={name: error.budget() for name, error in errors.items()},
            worst_row={name: error.worst_row() for name, error in known.items()},
            worst_part={name: ratio for name, (ratio, _) in parts.items()},
            worst_part_of={name: text for name, (_, text) in parts.items() if text},
            empty_rows_ok=all(empty_rows_ok) if empty_rows_ok else None,
        )


def wrong(accuracy: Accuracy, *, rows_alone: bool = False) -> str | None:
    """The reason why a result is wrong; None if it is correct.

    Args:
        rows_alone: check each row separately, since a few rows are not enough for a budget of their common
            error.
    """
    reasons = []
    for name, budget in accuracy.budget.items():
        error = accuracy.relative.get(name)
        if error is None:
            reasons.append(f"{name} is not finite")
        elif not error <= budget and not rows_alone:
            reasons.append(f"{name} is off by {error:.2e}, allowed {budget:.2e}")
        elif not accuracy.worst_row.get(name, 0.0) <= 1.0:
            reasons.append(
                f"a row of {name} is off by {accuracy.worst_row[name]:.3g} times what is allowed in one"
            )
        elif not accuracy.worst_part.get(name, 0.0) <= 1.0 and not rows_alone:
            reasons.append(
                f"{accuracy.worst_part_of.get(name, 'a part')} of {name} is off by "
                f"{accuracy.worst_part[name]:.3g} times what is allowed there"
            )
    if accuracy.empty_rows_ok is False:
        reasons.append("rows without keys must give out 0, LSE −inf and dq 0")
    return "; ".join(reasons) or None


class _Comparison:
    """Results of the KV heads under one mask against their reference, chunk by chunk."""

    def __init__(
        self,
        oracle: Oracle,
        reference: HeadsReference,
        given: dict[str, torch.Tensor],
        errors: dict[str, ErrorAccumulator],
        empty_rows_ok: list[bool],
    ) -> None:
        self.reference = reference
        self.given = given
        self.errors = errors
        self.empty_rows_ok = empty_rows_ok
        self.mask = oracle.problem.mask
        self.scale = oracle.problem.scale
        self.factors = oracle.row_factors
        # of vectors that dS is multiplied with
        self.lengths = {"dq": oracle.usual_lengths["k"], "dk": oracle.usual_lengths["q"]}

    def run(self, *, keys: bool) -> None:
        backward = "dq" in self.given
        for chunk in self.reference.chunks(backward=backward):
            if backward:
                self._note_size(chunk)
            self._compare_rows(chunk)
        if not (backward and keys):
            return
        of_keys = self.reference.keys
        for name, exact, emulated in zip(("dk", "dv"), of_keys.exact, of_keys.emulated, strict=True):
            result = self.given[name].transpose(0, 1)
            place = TensorPlace(tuple(self.reference.kv_heads), range(self.mask.seqlen_k), self.mask.seqlen_k)
            self.errors[name].add(result, exact, emulated, self._row_size(name, of_keys.weight_GC), place)

    def _compare_rows(self, chunk: RowsReference) -> None:
        empty = chunk.exact.lse_GRn == float("-inf")
        any_empty = bool(empty.any())
        place = TensorPlace(tuple(self.reference.q_heads), chunk.rows, self.mask.seqlen_q, ~empty)
        for name in FIELDS.keys() & self.given.keys():
            result = self.reference.grouped(self.given[name][chunk.start : chunk.start + len(chunk.rows)])
            reference, emulation = getattr(chunk.exact, FIELDS[name]), getattr(chunk.emulated, FIELDS[name])
            weight = chunk.exact.weight_GRn
            if any_empty:
                nothing = float("-inf") if name == "lse" else 0.0
                self.empty_rows_ok.append(bool((result[empty] == nothing).all()))
                result, reference, emulation, weight = (
                    x.masked_fill(empty if x.dim() == empty.dim() else empty[..., None], 0)
                    for x in (result, reference, emulation, weight)
                )
            if name != "lse":
                self.errors[name].add(result, reference, emulation, self._row_size(name, weight), place)
                continue
            # a logarithm: its absolute error is the relative one of the sum, of size 1 in each row
            self.errors[name].add(
                result[..., None],
                reference[..., None],
                emulation[..., None],
                reference.abs().clamp_min(1.0).masked_fill(empty, 0.0),
                place,
            )
            self.errors[name].size_squared += (~empty).sum()

    def _row_size(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        """Size of the summands of a row whose P has norm `weight`; the norm counts as float32's eps at
        least."""
        return weight.clamp_min(EPS32) * self.factors[name]

    def _note_size(self, chunk: RowsReference) -> None:
        """Adds the size of dq and dk if P∘dP, before the subtraction in dS, were multiplied with vectors of
        the RMS length of k and q."""
        for name, length in self.lengths.items():
            if name not in self.errors:
                continue
            # there are gradients, so it has a norm
            self.errors[name].size_squared += (
                (chunk.dscores_norm * self.scale * length)  # pyright: ignore[reportOptionalOperand]
                .double()
                .square()
            )


def _is_finite(name: str, tensor: torch.Tensor) -> torch.Tensor:
    fine = torch.isfinite(tensor)
    return (fine | (tensor == float("-inf")) if name == "lse" else fine).all()


def _usual_length(x_THD: torch.Tensor) -> torch.Tensor:
    """Root mean square of the lengths of its vectors, from a sample of them."""
    return x_THD[:: max(len(x_THD) // 64, 1)].double().square().sum(-1).mean().sqrt()
