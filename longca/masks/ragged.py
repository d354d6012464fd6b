"""Arithmetic with many ranges at once."""

import numpy as np


def spread(start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All members of the ranges start[n]..end[n], as (n, member), one entry for each; empty ranges give none."""
    count = np.maximum(end - start, 0)
    owner = np.repeat(np.arange(len(count)), count)
    return owner, np.arange(len(owner)) + (start - (np.cumsum(count) - count))[owner]
