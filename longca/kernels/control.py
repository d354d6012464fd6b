"""Controls: calls that are no attention, whose length or work is known beforehand.

They say how far times can be trusted, and what the device can do: attention is held against them, not against a data sheet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.core.cell import CallSpec, Cell
from longca.core.record import Accuracy, Samples, Work
from longca.kernels.contract import Kernel, Prepared, Problem

if TYPE_CHECKING:
    from longca.masks.traits import Traits


class Control(Kernel):
    """A call of known work. Of a cell it takes the length, heads, head dim and dtype."""

    family = "control"

    def supports(self, call: CallSpec, traits: Traits, device_type: str) -> str | None:
        if call.direction == "bwd":
            return "a control has no backward: it times one call"
        if not traits.full:
            return "a control runs once for each length, under the full mask"
        return None

    def work(self, cell: Cell) -> Work:
        """What one call does."""
        raise NotImplementedError

    def prepare(self, problem: Problem) -> PreparedControl:
        raise NotImplementedError


class PreparedControl(Prepared):
    """A control made ready, with its data. Only `call` is timed."""

    def call(self) -> object:
        raise NotImplementedError

    def judge(self, samples: Samples) -> Accuracy:
        """How far off the call is: by its times, or by the result that the last of them left."""
        raise NotImplementedError
