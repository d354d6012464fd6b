"""The first wrong row of each tensor of a kernel cell that is incorrect, to show a kernel's author where to
look.

It explains a verdict of the oracle and gives none itself, so it is no part of the method version.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from longca.lab.bench.check.judge import Digests, Judge
from longca.lab.bench.check.oracle import FIELDS, PartResult
from longca.lab.bench.check.plan import CheckPlan
from longca.lab.bench.check.reference import Reference
from longca.lab.bench.measure.kernel import KernelMeasurement
from longca.lab.bench.measure.latest import LatestMasks, LatestReferences
from longca.lab.bench.measure.result import WrongRow
from longca.lab.studies import Accuracy, Cell, Measure

NOTABLE = 4.0  # times the tensor's budget, relative to the row or to a usual row, whichever is longer


def find_wrong_rows(
    cell: Cell,
    measure: Measure,
    device: torch.device,
    masks: LatestMasks,
    references: LatestReferences,
    seed: int = 0,
) -> list[WrongRow]:
    """One for each tensor that is off in the checked call, in the order out, lse, dq, dk, dv; none where that
    call is right."""
    search = _Search(cell, measure, device, masks, references, seed)
    search.run()
    return search.found


class _Search(KernelMeasurement):
    """A measurement that ends with its check."""

    def __init__(
        self,
        cell: Cell,
        measure: Measure,
        device: torch.device,
        masks: LatestMasks,
        references: LatestReferences,
        seed: int,
    ) -> None:
        super().__init__(cell, measure, device, masks, seed, self._as_referee)
        self._references = references
        self.found: list[WrongRow] = []

    def _as_referee(self, plan: CheckPlan) -> Any:
        """Itself, as the referee of a measurement that ends before `Referee.check_timed`."""
        kept = self._references.get(plan)
        self._plan, self._judge = plan, Judge(plan, kept)
        self._reference = kept or Reference(plan.problem, self._judge.inputs, plan.scope)
        return self

    def check(self, results: list[PartResult], are_finite: dict[str, bool], digests: Digests) -> str | None:
        self._judge.check(results, are_finite, digests)
        assert self._judge.accuracy is not None
        self.found = _wrong_rows(
            self._reference, results, self._judge.accuracy, backward=self._plan.problem.needs_backward
        )
        return "no more is looked for"  # nothing is timed


def _wrong_rows(
    reference: Reference, given: list[PartResult], accuracy: Accuracy, *, backward: bool
) -> list[WrongRow]:
    off = {
        name: not (
            accuracy.relative.get(name, math.inf) <= budget
            and max(accuracy.worst_row.get(name, 0.0), accuracy.worst_part.get(name, 0.0)) <= 1.0
        )
        for name, budget in accuracy.budget.items()
    }
    suspects = [name for name in off if off[name] or accuracy.empty_rows_ok is False]
    parts: dict[str, list[_Part]] = {name: [] for name in suspects}
    for part in _compared(
        reference, [{name: of_part[name] for name in suspects} for of_part in given], backward=backward
    ):
        parts[part.tensor].append(part)
    rows = []
    for name in suspects:
        usual = float(torch.cat([part.size.flatten() for part in parts[name]]).square().mean().sqrt())
        marks = [
            part.error > NOTABLE * accuracy.budget[name] * part.size.clamp_min(usual) for part in parts[name]
        ]
        num_wrong = sum(int(mark.sum()) for mark in marks)
        if not num_wrong:
            if not off[name]:
                continue  # only rows without keys are wrong, in another tensor
            worst = max(float(part.error.max()) for part in parts[name])
            marks = [part.error == worst for part in parts[name]]
        row, head, error = min(
            first for part, mark in zip(parts[name], marks, strict=True) if (first := _first(part, mark))
        )
        rows.append(
            WrongRow(
                tensor=name,
                kind="key" if name in ("dk", "dv") else "query",
                row=row,
                head=head,
                error=error,
                num_wrong=num_wrong,
                num_checked=sum(part.error.numel() for part in parts[name]),
            )
        )
    return rows


@dataclass(frozen=True)
class _Part:
    """Errors and sizes of some rows of one tensor, (heads, rows) each."""

    tensor: str
    rows: Sequence[int]
    heads: list[int]
    error: torch.Tensor
    size: torch.Tensor


def _compared(reference: Reference, results: list[PartResult], *, backward: bool) -> Iterator[_Part]:
    for heads, given in zip(reference.groups(), results, strict=True):
        for chunk in heads.chunks(backward=backward):
            for name in FIELDS.keys() & given.keys():
                exact = getattr(chunk.exact, FIELDS[name]).flatten(0, 1)
                result = given[name][chunk.start : chunk.start + len(chunk.rows)].transpose(0, 1)
                yield _Part(name, chunk.rows, heads.q_heads, *_errors(result, exact))
        if backward:
            for name, exact in zip(("dk", "dv"), heads.keys.exact, strict=True):
                if name in given:
                    yield _Part(
                        name,
                        range(exact.shape[1]),
                        heads.kv_heads,
                        *_errors(given[name].transpose(0, 1), exact),
                    )


def _errors(result: torch.Tensor, exact: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Error and size of each row: norms over the last axis of (heads, rows, D), or absolute values of an LSE,
    (heads, rows)."""
    result = result.double()
    if exact.dim() == 2:
        alike = result == exact  # −∞ in rows without keys
        error = (result - exact).masked_fill(alike, 0.0).abs()
        return error.nan_to_num(float("inf"), float("inf")), torch.ones_like(error)
    error = torch.linalg.vector_norm(result - exact, dim=-1)
    return error.nan_to_num(float("inf"), float("inf")), torch.linalg.vector_norm(exact, dim=-1)


def _first(part: _Part, mark: torch.Tensor) -> tuple[int, int, float] | None:
    """(row, head, relative error) of the first marked row, of several heads the lowest; None if no row is
    marked."""
    marked = mark.T.nonzero()
    if not len(marked):
        return None
    row, head = marked[0].tolist()
    size = part.size[head, row].clamp_min(torch.finfo(torch.float64).tiny)
    return part.rows[row], part.heads[head], float(part.error[head, row] / size)
