"""Masks of random bands."""

from itertools import pairwise

import numpy as np

from longca.masks import Mask
from longca.masks.band import INF, as_bands


def random_bands(seed: int, num_queries: int, num_keys: int, cuts: int) -> Mask:
    """Random disjoint bands: the mask is cut into rectangles at random rows and columns. Some are empty, some
    full, others have an edge on one side or on both."""
    random = np.random.default_rng(seed)

    def edges(length: int) -> list[int]:
        return [0, *sorted(random.choice(np.arange(1, length), cuts, replace=False).tolist()), length]

    rows = edges(num_queries)
    columns = edges(num_keys)
    bands = []
    for first, last in pairwise(rows):
        for start, end in pairwise(columns):
            low = int(random.integers(start - last, end - first))
            width = int(random.integers(1, end - start + last - first))
            kind = random.integers(6)
            if kind < 4:
                lo, hi = ((-INF, INF), (low, INF), (-INF, low), (low, low + width))[kind]
                bands.append((first, last, start, end, lo, hi))
    return Mask(num_queries, num_keys, (as_bands(bands),), name=f"random bands {seed}")
