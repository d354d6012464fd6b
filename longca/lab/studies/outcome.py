"""Outcomes of a cell: measured and right, or why there is no number."""

from typing import Annotated, Literal

from pydantic import Field

from longca.core import Count, Frozen

MOST_LINE = 10_000  # characters
MOST_LOG = 1_000_000  # characters


Seconds = Annotated[float, Field(ge=0, le=1e9)]


Line = Annotated[str, Field(max_length=MOST_LINE)]


class Ok(Frozen):
    """Measured, and right within its error budget."""

    status: Literal["ok"] = "ok"


class Unsupported(Frozen):
    """The method does not support this cell on any machine."""

    status: Literal["unsupported"] = "unsupported"
    reason: str


class Unavailable(Frozen):
    """The method is not available on this machine."""

    status: Literal["unavailable"] = "unavailable"
    reason: str


class OutOfMemory(Frozen):
    """Out of memory."""

    status: Literal["oom"] = "oom"
    requested_bytes: Count | None
    """of the failed allocation, if known"""
    where: Line
    """stage: inputs, prepare, oracle, fwd, bwd"""


class Incorrect(Frozen):
    """It ran and its result is wrong, so it has no speed."""

    status: Literal["incorrect"] = "incorrect"
    reason: str


class Implausible(Frozen):
    """Its checked results are correct, but its times are shorter than the device allows, or hold only for
    inputs of which little has changed, so it has no speed."""

    status: Literal["implausible"] = "implausible"
    reason: str


class Failed(Frozen):
    """It raised, or its process died."""

    status: Literal["error"] = "error"
    type: Line
    message: str
    log: str = Field(default="", max_length=MOST_LOG)
    """end of the traceback or of the process's output"""


class TimedOut(Frozen):
    """It exceeded its time limit and was stopped."""

    status: Literal["timeout"] = "timeout"
    seconds: Seconds


Outcome = Annotated[
    Ok | Unsupported | Unavailable | OutOfMemory | Incorrect | Implausible | Failed | TimedOut,
    Field(discriminator="status"),
]


WAS_AT = " was at "
"""of the note with the code position of a rank when it died or was stopped: "rank 0 was at file.py:7 in
forward" """


STATUSES = ("ok", "unsupported", "unavailable", "oom", "incorrect", "implausible", "error", "timeout")
