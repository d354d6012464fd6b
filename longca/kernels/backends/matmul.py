"""A control without attention: a square matrix product. It reaches the highest rate of operations on this
device, the ceiling for attention."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from longca.core import CallSpec, Work
from longca.kernels.contract import Problem
from longca.kernels.control import Control, ControlErrors, PreparedControl

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

NUM_ROWS = 64  # checked rows of the product, the first and the last among them
SEED = 0


class Matmul(Control):
    label = "Matmul"
    summary = (
        "Ceiling: one square matrix product by torch in the cell's dtype, as many rows and columns as tokens"
    )
    url = "https://docs.pytorch.org/docs/stable/generated/torch.mm.html"

    def work(self, call: CallSpec, seqlen: int) -> Work:
        return Work(flops=2 * seqlen**3)

    def prepare(self, problem: Problem) -> MatmulPrepared:
        return MatmulPrepared(problem)


class MatmulPrepared(PreparedControl):
    """A product of standard normal values; zeros or ones would take less power, so the GPU would clock
    higher."""

    def __init__(self, problem: Problem) -> None:
        import torch

        super().__init__(problem)
        size = problem.mask.seqlen_q
        like = {"device": problem.device, "dtype": problem.dtype}
        generator = torch.Generator(problem.device).manual_seed(SEED)
        self._a, self._b = (torch.randn(size, size, generator=generator, **like) for _ in range(2))
        self._out = torch.full((size, size), float("nan"), **like)

    def call(self) -> torch.Tensor:
        import torch

        return torch.mm(self._a, self._b, out=self._out)

    def judge(self, times_ms: Sequence[float]) -> ControlErrors:
        """The error of sampled rows against float64.

        The budget is one rounding of the result (at most eps / 2) plus the error of float32 sums: each of N
        additions has an error of up to eps times a partial sum, which for random data is smaller than the
        total, and these errors accumulate like a random walk.
        """
        import torch

        size = len(self._a)
        rows = (
            torch.linspace(0, size - 1, min(NUM_ROWS, size), dtype=torch.float64)
            .round()
            .long()
            .to(self._a.device)
        )
        exact = self._a[rows].double() @ self._b.double()
        difference = self._out[rows].double() - exact
        error = float(difference.norm() / exact.norm())
        largest = float(difference.abs().max())
        budget = torch.finfo(self._a.dtype).eps / 2 + torch.finfo(torch.float32).eps * math.sqrt(size)
        finite = math.isfinite(error) and bool(self._out.isfinite().all())
        return ControlErrors(
            reference="float64",
            scope=f"{len(rows)} of {size} rows",
            budget={"out": budget},
            relative={"out": error} if finite else {},
            max_abs={"out": largest} if finite else {},
        )
