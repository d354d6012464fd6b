"""Row ranges of one kernel call among several, for kernels that merge the results of these calls as they store."""

from dataclasses import dataclass

UNIT_ROWS = 128  # granularity of row ranges, in queries


@dataclass(frozen=True)
class Contribution:
    """Queries of one call that stand at the same place in their order of calls. Each call has other keys.

    | is_first | is_last | forward_onto reads | and writes          |
    |----------|---------|--------------------|---------------------|
    | yes      | no      | nothing            | (total, LSE)        |
    | no       | no      | (total, LSE)       | (total, LSE)        |
    | no       | yes     | (total, LSE)       | (out, LSE)          |
    | yes      | yes     | nothing            | (out, LSE)          |
    """

    is_first: bool
    """no earlier call has these queries"""
    is_last: bool
    """no later call has them"""
    rows: tuple[tuple[int, int], ...] | None
    """ranges (start, end) of whole units of `UNIT_ROWS` queries, the last one perhaps cut at the last row; None for all rows"""
