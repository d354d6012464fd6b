"""Failures, and what they are evidence of. A claim about memory rests on memory alone: a refusal or an error
for another reason says nothing of it, in either direction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.lab.claims.grid import STUDY_BYTES
from longca.lab.store.text import plural

if TYPE_CHECKING:
    from collections.abc import Iterable

    from longca.lab.claims.evidence import Point

TOO_LARGE = "do not fit"
"""what reasons say where a kernel's counts are too large for its integers"""


def lacks_memory(point: Point) -> bool | None:
    """True if the point ran out of memory, or took more than the study's GPU has; False if it took less; None
    if it did not run for another reason, or its memory is not known."""
    needed = point.value("absolute_peak_bytes")
    if "oom" in point.statuses or needed > STUDY_BYTES:
        return True
    return False if needed == needed else None


def is_too_large(point: Point) -> bool:
    """True if a cell of the point was refused or failed because its counts are too large for the kernel."""
    return any(cell.status in ("unsupported", "error") and TOO_LARGE in cell.reason for cell in point.cells)


def refused_note(points: Iterable[Point]) -> str:
    """A sentence with the number of points that have no rate because of such counts; "" without any."""
    refused = [point for point in points if is_too_large(point)]
    names = ", ".join(dict.fromkeys(point.name for point in refused))
    return f"Too large for {names}, and without a rate: {plural(len(refused), 'point')}." if refused else ""
