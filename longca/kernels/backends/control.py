"""A control without attention: a call of known duration. If its time is wrong, no other time of the run can
be trusted."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from longca.core import CallSpec, Work
from longca.kernels.contract import Problem, missing_compiler, missing_modules
from longca.kernels.control import Control, ControlErrors, PreparedControl

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

MS_PER_TOKEN = 1 / 1024
SHORTEST_MS = 0.5
LONGEST_MS = 20.0
BUDGET = 0.05  # of the nominal duration


class Wait(Control):
    label = "Control"
    summary = "A wait of known length that proves the timer: 1 ms for every 1024 tokens, from 0.5 to 20 ms"

    def available(self, device_type: str) -> str | None:
        if device_type == "cpu":
            return missing_modules(self.needs)
        return missing_modules(("torch", "triton")) or missing_compiler(device_type)

    def work(self, call: CallSpec, seqlen: int) -> Work:
        return Work(duration_ms=_duration_ms(seqlen))

    def prepare(self, problem: Problem) -> WaitPrepared:
        return WaitPrepared(problem)


class WaitPrepared(PreparedControl):
    """A wait. On a CPU it spins on the monotonic clock; on a GPU one kernel spins on the GPU's clock,
    independent of the host."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._duration_ms = _duration_ms(problem.mask.seqlen_q)
        self._end_ns: torch.Tensor | None = None
        if problem.device.type == "cuda":
            import torch

            self._end_ns = torch.zeros(1, dtype=torch.int64, device=problem.device)
            self.call()  # compiles

    def call(self) -> None:
        if self._end_ns is not None:
            from longca.ops.spin import spin

            spin(self._duration_ms, self._end_ns)
            return
        import time

        end_ns = time.perf_counter_ns() + round(self._duration_ms * 1e6)
        while time.perf_counter_ns() < end_ns:
            pass

    def judge(self, times_ms: Sequence[float]) -> ControlErrors:
        error = abs(statistics.median(times_ms) - self._duration_ms) / self._duration_ms
        return ControlErrors(
            reference="nominal duration", scope="all", relative={"time": error}, budget={"time": BUDGET}
        )


def _duration_ms(num_tokens: int) -> float:
    """The nominal duration of the call in ms."""
    return min(max(num_tokens * MS_PER_TOKEN, SHORTEST_MS), LONGEST_MS)
