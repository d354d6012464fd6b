"""Refusals that stand for a failure: a kernel was not called, since its own call is known to fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.lab.store.text import plural

if TYPE_CHECKING:
    from collections.abc import Iterable

    from longca.lab.claims.evidence import Point

TOO_LARGE = "do not fit"
"""what reasons say where a kernel's counts are too large for its integers"""


def is_too_large(point: Point) -> bool:
    """True if a cell of the point was refused or failed because its counts are too large for the kernel."""
    return any(cell.status in ("unsupported", "error") and TOO_LARGE in cell.reason for cell in point.cells)


def refused_note(points: Iterable[Point]) -> str:
    """A sentence with the number of points that have no rate because of such counts; "" without any."""
    refused = [point for point in points if is_too_large(point)]
    names = ", ".join(dict.fromkeys(point.name for point in refused))
    return f"Too large for {names}, and without a rate: {plural(len(refused), 'point')}." if refused else ""
