"""Vectorised arithmetic on many ranges."""

import numpy as np


def spread(start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All members of the ranges start[n]..end[n], as (n, member) pairs; empty ranges have none."""
    count = np.maximum(end - start, 0)
    owner = np.repeat(np.arange(len(count)), count)
    return owner, np.arange(len(owner)) + (start - (np.cumsum(count) - count))[owner]
