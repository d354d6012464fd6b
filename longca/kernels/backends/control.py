"""No attention: a call that lasts as long as it says. If its time comes out wrong, no other time of the run can be trusted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.core.cell import Cell
from longca.kernels.contract import Forward, Kernel, Prepared, Problem, missing_compiler, missing_modules

if TYPE_CHECKING:
    import torch

    from longca.masks.traits import Traits

MS_PER_TOKEN = 1 / 1024
SHORTEST_MS, LONGEST_MS = 0.5, 20.0


class Control(Kernel):
    label = "Control"
    family = "control"
    summary = "A wait of known length that proves the timer: 1 ms for every 1024 tokens, from 0.5 to 20 ms"

    def available(self, device_type: str) -> str | None:
        if device_type == "cpu":
            return missing_modules(self.needs)
        return missing_modules(("torch", "triton")) or missing_compiler(device_type)

    def supports(self, cell: Cell, traits: Traits, device_type: str) -> str | None:
        if cell.direction == "bwd":
            return "the control has no backward: it times one call"
        if not traits.full:
            return "the control runs once for each length, under the full mask"
        return None

    def nominal_ms(self, cell: Cell) -> float:
        return duration_ms(cell.seqlen)

    def prepare(self, problem: Problem) -> ControlPrepared:
        return ControlPrepared(problem)


class ControlPrepared(Prepared):
    """CPU: spins on the monotonic clock. GPU: one kernel spins on the GPU's own clock, so that no host is involved."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._duration_ms = duration_ms(problem.mask.seqlen_q)
        self._end_ns: torch.Tensor | None = None
        if problem.device.type == "cuda":
            import torch

            self._end_ns = torch.zeros(1, dtype=torch.int64, device=problem.device)
            self._spin()

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Forward:
        self._spin()
        return Forward(q)

    def _spin(self) -> None:
        if self._end_ns is not None:
            from longca.ops.spin import spin

            spin(self._duration_ms, self._end_ns)
            return
        import time

        end_ns = time.perf_counter_ns() + round(self._duration_ms * 1e6)
        while time.perf_counter_ns() < end_ns:
            pass


def duration_ms(num_tokens: int) -> float:
    """What the call is made to last."""
    return min(max(num_tokens * MS_PER_TOKEN, SHORTEST_MS), LONGEST_MS)
