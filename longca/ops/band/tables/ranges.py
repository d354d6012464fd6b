"""Vectorised index arithmetic: expanded counts, positions of true entries, segments."""

import numpy as np

from longca.ops.band.tables.arrays import Array, concat, cumulative, numbers, repeated, true_positions, zeros


def expand(count: Array, total: int) -> tuple[Array, Array]:
    """(n, rank): count[n] entries for each n, ranked from 0. `total` is their sum; with it, no
    synchronisation with the device is needed."""
    owner = repeated(count, total)
    return owner, numbers(total, count) - (cumulative(count) - count)[owner]


def true_places(mask: Array, total: int) -> Array:
    """Indices of the `total` true entries: `true_positions` without synchronisation."""
    return mask.nonzero()[0] if isinstance(mask, np.ndarray) else repeated(mask.long(), total)


def segments(breaks: Array) -> tuple[Array, Array]:
    """First and last entry of each segment of at least one entry; breaks[n] says that entry n + 1 begins
    one."""
    after = true_positions(breaks)
    nothing = zeros((1,), after)
    return concat([nothing, after + 1]), concat([after, nothing + len(breaks)])
