"""Controls: calls other than attention with known duration or work.

They validate the timer and measure the device's practical peak, with which attention is compared instead of a
data sheet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.kernels.contract import Kernel, Prepared, Problem
from longca.lab.studies.cell import CallSpec, Cell
from longca.lab.studies.record import Accuracy, Samples, Work

if TYPE_CHECKING:
    from longca.masks.traits import Traits


class Control(Kernel):
    """A call of known work. It uses length, heads, head dim and dtype of a cell."""

    family = "control"

    def supports(self, call: CallSpec, traits: Traits, device_type: str) -> str | None:
        if call.direction == "bwd":
            return "a control has no backward: it times one call"
        if not traits.full:
            return "a control runs once for each length, under the full mask"
        return None

    def work(self, cell: Cell) -> Work:
        """The work of one call."""
        raise NotImplementedError

    def prepare(self, problem: Problem) -> PreparedControl:
        raise NotImplementedError


class PreparedControl(Prepared):
    """A prepared control with its data. Only `call` is timed."""

    def call(self) -> object:
        raise NotImplementedError

    def judge(self, samples: Samples) -> Accuracy:
        """The error of the call's times, or of the result of the last call."""
        raise NotImplementedError
