"""The oracle decides if a result is right, and measures its error against a float64 reference.

**Reference.** float64, by the definition of attention, over chunks of query rows, from the mask's bands or its block grid.

**Error budget.** The same chunks are also computed as a careful kernel of the cell's dtype would compute them: float32 sums, with
the operands of the second matmuls (P, dS) and the results rounded to the dtype. The error of that emulation is the cost of this
dtype for these inputs and this mask, for any kernel. A result may be off by

    MULTIPLE · (error of the emulation)  +  (ROUNDING · eps(dtype)  +  SUMMING · eps(float32)) · (size before cancelling)

relative to the reference; the constants are in `longca.bench.check.tally`. The multiple leaves room for other orders of summation
and for gradients that are summed in the dtype. The second term leaves room for one more rounding, of scores or of dP, as unfused
attention has it, and for float32 itself where the emulation happens to be exact. This term uses the size of the summands, not of the
sum: dS is a difference, and where the differences of a row cancel (a row with one key), no kernel can have a small relative error.

**Rows.** In a long result one wrong row, or one wrong tile of one head, is very small compared with the norm of the whole. So no row
may be off by more than ROW_MULTIPLE times the budget of the row itself. That budget has the row's own emulation error. As its size it
has ‖P‖ of the row, or of the key's column, times the RMS size of the vectors that P is multiplied with.

A mask that is off by one key in each row gives an error of about 1/sqrt(keys in a row). In bf16 this is detected below some 10,000 keys
a row. In longer rows one wrong key is smaller than the rounding; there the shorter lengths of the same mask must detect the mistake.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from longca.bench.check.inputs import Inputs
from longca.bench.check.raster import DenseMaskRows
from longca.bench.check.reference import Arithmetic, Chunk, Keys, Rows, attend
from longca.bench.check.scope import CheckedSubset, whole
from longca.bench.check.tally import EPS32, ErrorAccumulator
from longca.core.record import Accuracy
from longca.kernels.contract import Problem

CHUNK_PAIRS = {"cpu": 1 << 20, "cuda": 1 << 26}  # (query, key) pairs over heads at a time: bounds the oracle's memory
FIELDS = {"out": "out_GRnD", "lse": "lse_GRn", "dq": "dq_GRnD"}


class Oracle:
    """Judges results of one problem on given inputs.

    Args:
        kv_heads: KV heads to check, with their query heads; all if None.
        scope: the subset to check, instead of `kv_heads` (`longca.bench.check.scope.affordable`).
    """

    def __init__(self, problem: Problem, inputs: Inputs, kv_heads: tuple[int, ...] | None = None,
                 scope: CheckedSubset | None = None) -> None:
        self.problem, self.inputs = problem, inputs
        self.scope = whole(problem, kv_heads) if scope is None else scope

    @property
    def dout_THD(self) -> torch.Tensor:
        """The output gradient for which gradients are judged: that of the inputs, but 0 in rows that are not checked."""
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
        for kv_heads, raster in self._groups():
            _Comparison(self, kv_heads, raster, given, tallies, empty_rows_ok).run()
        finite = {name: tally for name, tally in tallies.items()
                  if _is_finite(name, given[name]) and math.isfinite(tally.relative())}
        return Accuracy(reference="float64", scope=self.scope.text,
                        relative={name: tally.relative() for name, tally in finite.items()},
                        max_abs={name: tally.max_abs() for name, tally in finite.items()},
                        budget={name: tally.budget() for name, tally in tallies.items()},
                        worst_row={name: tally.worst_row() for name, tally in finite.items()},
                        empty_rows_ok=all(empty_rows_ok) if empty_rows_ok else None)

    def _groups(self) -> Iterator[tuple[list[int], DenseMaskRows]]:
        """KV heads to check, by the mask that they share, with the dense rows of that mask."""
        mask = self.problem.mask
        heads_per_group = self.problem.num_kv_heads // mask.num_groups
        for group in sorted({head // heads_per_group for head in self.scope.kv_heads}):
            heads = [head for head in self.scope.kv_heads if head // heads_per_group == group]
            yield heads, DenseMaskRows(mask, group, self.inputs.q_THD.device)


def wrong(accuracy: Accuracy) -> str | None:
    """The reason why a result is not right; None if it is."""
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
    """Compares the KV heads that share one mask, chunk by chunk."""

    def __init__(self, oracle: Oracle, kv_heads: list[int], raster: DenseMaskRows, given: dict[str, torch.Tensor],
                 tallies: dict[str, ErrorAccumulator], empty_rows_ok: list[bool]) -> None:
        self.scope, self.inputs, self.scale = oracle.scope, oracle.inputs, oracle.problem.scale
        self.kv_heads, self.raster, self.given = kv_heads, raster, given
        self.tallies, self.empty_rows_ok = tallies, empty_rows_ok
        self.ratio = oracle.problem.num_q_heads // oracle.problem.num_kv_heads
        self.q_heads = [head * self.ratio + query for head in kv_heads for query in range(self.ratio)]
        self.seqlen_k = oracle.problem.mask.seqlen_k
        self.exact, self.emulated = Arithmetic(torch.float64), Arithmetic(torch.float32, oracle.problem.dtype)
        q, k, v, dout = (_usual_length(x) for x in (self.inputs.q_THD, self.inputs.k_TGD, self.inputs.v_TGD, self.inputs.dout_THD))
        dp = dout * v / oracle.problem.head_dim**0.5
        self.factors = {"out": v, "dq": dp * k * self.scale, "dk": dp * q * self.scale, "dv": dout}  # RMS size of P's other operand

    def run(self) -> None:
        k, v = (x_TGD[:, self.kv_heads].transpose(0, 1) for x_TGD in (self.inputs.k_TGD, self.inputs.v_TGD))
        sums = {arithmetic: (torch.zeros_like(k, dtype=arithmetic.wide), torch.zeros_like(v, dtype=arithmetic.wide))
                for arithmetic in (self.exact, self.emulated)} if "dq" in self.given else {}
        weight_squared = torch.zeros_like(k[..., 0], dtype=torch.float64)
        for first, last in self._chunks():
            visible = self.raster.rows(first, last)
            seen = visible.any(0).nonzero().squeeze(1)
            results = {}
            for arithmetic in (self.exact, self.emulated):
                chunk = self._chunk(arithmetic.wide, first, last, k[:, seen], v[:, seen], visible[:, seen])
                results[arithmetic], keys = attend(chunk, arithmetic)
                if keys is not None:
                    sums[arithmetic][0][:, seen] += keys.dk_GCD
                    sums[arithmetic][1][:, seen] += keys.dv_GCD
                    if arithmetic is self.exact:
                        weight_squared[:, seen] += keys.weight_GC.square()
                        self._note_size(keys)
            self._compare_rows(first, last, results[self.exact], results[self.emulated])
        for index, name in enumerate(("dk", "dv") if sums else ()):
            self.tallies[name].add(self.given[name][:, self.kv_heads].transpose(0, 1), sums[self.exact][index],
                                   self.emulated.round(sums[self.emulated][index]), self._row_size(name, weight_squared.sqrt()))

    def _chunks(self) -> Iterator[tuple[int, int]]:
        """Ranges of rows whose scores fit into CHUNK_PAIRS."""
        pairs = CHUNK_PAIRS["cuda" if self.inputs.q_THD.device.type == "cuda" else "cpu"] // len(self.q_heads)
        step = self.seqlen_k
        for first, last in self.scope.rows:
            while first < last:
                step = min(2 * step, last - first)
                while step > 1 and step * self.raster.most_keys(first, first + step) > pairs:
                    step = (step + 1) // 2
                yield first, first + step
                first += step

    def _chunk(self, wide: torch.dtype, first: int, last: int, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor) -> Chunk:
        dout = self._rows(self.inputs.dout_THD, first, last).to(wide) if "dq" in self.given else None
        return Chunk(self._rows(self.inputs.q_THD, first, last).to(wide) * self.scale, k.to(wide), v.to(wide), dout,
                     visible, self.scale)

    def _rows(self, x_THD: torch.Tensor, first: int, last: int) -> torch.Tensor:
        """Rows first..last of these query heads as (G, R, n, …)."""
        part = x_THD[first:last, self.q_heads].transpose(0, 1)
        return part.reshape(len(self.kv_heads), self.ratio, *part.shape[1:])

    def _compare_rows(self, first: int, last: int, exact: Rows, emulated: Rows) -> None:
        empty = exact.lse_GRn == float("-inf")
        any_empty = bool(empty.any())
        for name in FIELDS.keys() & self.given.keys():
            result = self._rows(self.given[name], first, last)
            reference, emulation, weight = getattr(exact, FIELDS[name]), getattr(emulated, FIELDS[name]), exact.weight_GRn
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
        """Size of the summands of a row whose P has norm `weight`; the norm counts as float32's eps at least."""
        return weight.clamp_min(EPS32) * self.factors[name]

    def _note_size(self, keys: Keys) -> None:
        """Adds the size of dq and dk if P∘dP, before the subtraction in dS, were multiplied with vectors of the RMS length of k and q."""
        for name, factor in (("dq", self.inputs.k_TGD), ("dk", self.inputs.q_THD)):
            self.tallies[name].size_squared += (keys.dscores_norm * self.scale * _usual_length(factor)).double().square()


def _is_finite(name: str, tensor: torch.Tensor) -> bool:
    fine = torch.isfinite(tensor)
    return bool((fine | (tensor == float("-inf")) if name == "lse" else fine).all())


def _usual_length(x_THD: torch.Tensor) -> torch.Tensor:
    """Root mean square of the lengths of its vectors, from a sample of them."""
    return x_THD[:: max(len(x_THD) // 64, 1)].double().square().sum(-1).mean().sqrt()
