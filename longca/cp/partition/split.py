"""Dividing a number of things among ranks."""

from itertools import pairwise


def even_ranges(total: int, parts: int) -> tuple[range, ...]:
    """0..total in order as `parts` ranges whose lengths differ by at most one, longer ones first; some may be empty."""
    short, longer = divmod(total, parts)
    starts = [part * short + min(part, longer) for part in range(parts + 1)]
    return tuple(range(first, last) for first, last in pairwise(starts))
