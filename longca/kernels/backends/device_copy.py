"""A control without attention: a copy inside device memory. Its rate is the ceiling for all memory-bound
calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.core import CallSpec, Work
from longca.kernels.contract import Problem
from longca.kernels.control import Control, ControlErrors, PreparedControl

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

SEED = 0


class DeviceCopy(Control):
    label = "Device copy"
    summary = (
        "Ceiling: a copy of a tensor of the size of q inside device memory; bytes read and bytes "
        "written count"
    )
    url = "https://docs.pytorch.org/docs/stable/generated/torch.Tensor.copy_.html"

    def work(self, call: CallSpec, seqlen: int) -> Work:
        return Work(traffic_bytes=2 * seqlen * call.num_q_heads * call.head_dim * call.elem_bytes)

    def prepare(self, problem: Problem) -> DeviceCopyPrepared:
        return DeviceCopyPrepared(problem)


class DeviceCopyPrepared(PreparedControl):
    """A copy of random bits, compared as integers, since as floats some would be NaN, which is unequal to
    itself."""

    def __init__(self, problem: Problem) -> None:
        import torch

        super().__init__(problem)
        integer = {2: torch.int16, 4: torch.int32}[problem.dtype.itemsize]
        limits = torch.iinfo(integer)
        generator = torch.Generator(problem.device).manual_seed(SEED)
        shape = (problem.mask.seqlen_q, problem.num_q_heads, problem.head_dim)
        self._source = torch.randint(
            limits.min, limits.max, shape, generator=generator, device=problem.device, dtype=integer
        )
        self._copy = ~self._source

    def call(self) -> torch.Tensor:
        return self._copy.copy_(self._source)

    def judge(self, times_ms: Sequence[float]) -> ControlErrors:
        """The share of values that differ; it must be 0."""
        import torch

        same = torch.equal(self._copy, self._source)
        wrong = 0.0 if same else int((self._copy != self._source).count_nonzero()) / self._source.numel()
        return ControlErrors(
            reference="the source", scope="all", relative={"copy": wrong}, budget={"copy": 0.0}
        )
