"""Which queries one of several calls is for, where a kernel merges their results as it stores."""

from dataclasses import dataclass

UNIT_ROWS = 128  # queries that are visited together


@dataclass(frozen=True)
class Contribution:
    """Some queries of a call of several, each of which is for other keys."""

    begins: bool
    """no call before was for these queries"""
    ends: bool
    """no call after is"""
    rows: tuple[tuple[int, int], ...] | None
    """they, as ranges of whole units of `UNIT_ROWS`, the last one perhaps to the last row; None for all"""
