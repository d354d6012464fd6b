"""The error accumulator: the squared errors of one tensor, summed over chunks, and its error budget."""

from __future__ import annotations

import torch

from longca.lab.bench.check.part_errors import ROW_MULTIPLE, PartErrors, TensorPlace

MULTIPLE = 2.0
ROUNDING = 0.5  # of eps: the largest error of one rounding, more than twice the typical error
SUMMING = 16.0
EPS32 = torch.finfo(torch.float32).eps
TINY = torch.finfo(torch.float64).tiny


class ErrorAccumulator:
    """Errors of a result and of the emulation against the reference, relative to the reference's Frobenius
    norm.

    `size_squared` is the squared size of the summands where that is more than the squared size of the sum;
    float32's rounding errors are proportional to its root. Sums stay on the device until they are read.

    Args:
        eps: of the result's dtype.
    """

    def __init__(self, eps: float) -> None:
        self.size_squared: torch.Tensor | float = 0.0
        self._unit = ROUNDING * eps + SUMMING * EPS32
        self._error_squared: torch.Tensor | float = 0.0
        self._emulation_squared: torch.Tensor | float = 0.0
        self._norm_squared: torch.Tensor | float = 0.0
        self._max_abs: torch.Tensor | None = None
        self._worst_row: torch.Tensor | None = None
        self._parts = PartErrors(MULTIPLE, self._unit)

    def add(
        self,
        result: torch.Tensor,
        reference: torch.Tensor,
        emulation: torch.Tensor,
        row_size: torch.Tensor,
        place: TensorPlace | None = None,
    ) -> None:
        """Add one chunk: three tensors of one shape, (…, D), and the size of each row before anything in it
        cancelled, (…).

        Args:
            place: of the chunk in the tensor; its parts are compared as well, if given.
        """
        if not reference.numel():
            return
        error = (result.double() - reference).abs_()
        self._max_abs = _larger(self._max_abs, error.amax())
        squares = error.square_(), (emulation.double() - reference).square_(), reference.square()
        error_squared, emulation_squared, reference_squared = of_rows = [x.sum(-1) for x in squares]
        if place is not None:
            self._parts.add(place, squares, of_rows, row_size)
        allowed = MULTIPLE * emulation_squared.sqrt() + self._unit * row_size
        self._worst_row = _larger(
            self._worst_row, (error_squared.sqrt() / (ROW_MULTIPLE * allowed).clamp_min(TINY)).amax()
        )
        self._error_squared += error_squared.sum()
        self._emulation_squared += emulation_squared.sum()
        self._norm_squared += reference_squared.sum()

    def relative(self) -> float:
        return float(self._error_squared) ** 0.5 / self._denominator

    def max_abs(self) -> float:
        return 0.0 if self._max_abs is None else float(self._max_abs)

    def worst_row(self) -> float:
        """The largest ratio of a row's error to its allowed error."""
        return 0.0 if self._worst_row is None else float(self._worst_row)

    def worst_part(self) -> tuple[float, str]:
        """See `PartErrors.worst`."""
        return self._parts.worst()

    def budget(self) -> float:
        """The relative error allowed: see `longca.lab.bench.check.oracle`."""
        emulation = float(self._emulation_squared) ** 0.5 / self._denominator
        return MULTIPLE * emulation + self._unit * self._size / self._denominator

    @property
    def _size(self) -> float:
        return max(float(self._norm_squared), float(self.size_squared)) ** 0.5

    @property
    def _denominator(self) -> float:
        """‖reference‖, but at least float32's eps times the size of the summands; 1 if both are 0."""
        return max(float(self._norm_squared) ** 0.5, self._size * EPS32) or 1.0


def _larger(before: torch.Tensor | None, now: torch.Tensor) -> torch.Tensor:
    return now if before is None else torch.maximum(before, now)
