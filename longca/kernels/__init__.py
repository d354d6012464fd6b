"""The contract of kernels, shared code, and one file for each kernel."""

from typing import TYPE_CHECKING

from longca.core.lazy import face

if TYPE_CHECKING:
    from longca.kernels.contract import (
        UNIT_ROWS,
        Contribution,
        Forward,
        Kernel,
        Prepared,
        Problem,
        missing_modules,
    )
    from longca.kernels.sinks import backward_with_sinks, forward_with_sinks
    from longca.kernels.sizes import CallSizes, part_of
else:
    __getattr__, __dir__ = face(__name__)

__all__ = [
    "UNIT_ROWS",
    "CallSizes",
    "Contribution",
    "Forward",
    "Kernel",
    "Prepared",
    "Problem",
    "backward_with_sinks",
    "forward_with_sinks",
    "missing_modules",
    "part_of",
]
