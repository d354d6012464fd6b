"""Controls: calls other than attention with known duration or work.

They validate the timer and measure the device's practical peak, with which attention is compared instead of a
data sheet.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from longca.core import CallSpec, Work
from longca.kernels.contract import Kernel, Prepared, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from longca.masks import Traits


class Control(Kernel):
    """A call of known work. It uses the length, heads, head dim and dtype of a call."""

    family = "control"

    def supports(self, call: CallSpec, traits: Traits, device_type: str) -> str | None:
        if call.direction == "bwd":
            return "a control has no backward: it times one call"
        if traits.seqlen_q != traits.seqlen_k:
            return "a control has no context before its tokens: it runs on square cells"
        if not traits.full:
            return "a control runs once for each length, under the full mask"
        return None

    def work(self, call: CallSpec, seqlen: int) -> Work:
        """The work of one call."""
        raise NotImplementedError

    def prepare(self, problem: Problem) -> PreparedControl:
        raise NotImplementedError


@dataclass(frozen=True)
class ControlErrors:
    """Errors of a control's calls, by name; a name of `budget` without an error is not finite."""

    reference: str
    """the value that calls are compared with"""
    scope: str
    """the compared part: "all", or a share of rows"""
    relative: dict[str, float]
    budget: dict[str, float]
    """the relative errors allowed"""
    max_abs: dict[str, float] = field(default_factory=dict)


class PreparedControl(Prepared):
    """A prepared control with its data. Only `call` is timed."""

    def call(self) -> object:
        raise NotImplementedError

    def judge(self, times_ms: Sequence[float]) -> ControlErrors:
        """The error of the times of all calls, or of the result of the last call."""
        raise NotImplementedError
