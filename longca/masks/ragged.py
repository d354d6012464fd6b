"""Many ranges at once."""

import numpy as np


def spread(first: np.ndarray, behind: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All members of the ranges first[n]..behind[n], as (n, member), one entry for each; empty ranges give none."""
    count = np.maximum(behind - first, 0)
    owner = np.repeat(np.arange(len(count)), count)
    return owner, np.arange(len(owner)) + (first - (np.cumsum(count) - count))[owner]
