"""Questions of some studies besides who is the fastest: the cost of defects, the part of the power limit."""

from typing import TYPE_CHECKING

from longca.core.lazy import face

if TYPE_CHECKING:
    from longca.lab.report.questions import as_released, power
else:
    __getattr__, __dir__ = face(__name__)

__all__ = ["as_released", "power"]
