"""Tile sizes of band attention's kernels: data, found by `benchmarks/band.py --tune`."""

from dataclasses import dataclass
from enum import Enum


class Use(Enum):
    """The kernels that read lines."""

    FORWARD = "forward"
    KEYS = "keys"  # dK and dV: lines of keys
    QUERIES = "queries"  # dQ


@dataclass(frozen=True)
class Tuned:
    """How one kernel is built."""

    rows: int  # of the score matrix: a line's tile, times the query heads that share it if it is one of queries
    step: int  # its columns: a line's step, times the query heads that share it if it is one of queries
    warps: int
    stages: int  # loads under way at once
    flat: bool = True  # one loop over all full steps; else one loop for each run of them


TUNED = {
    64: {Use.FORWARD: Tuned(128, 64, 4, 3), Use.KEYS: Tuned(128, 64, 4, 2), Use.QUERIES: Tuned(128, 64, 4, 2)},
    128: {Use.FORWARD: Tuned(128, 64, 4, 2), Use.KEYS: Tuned(128, 64, 8, 2), Use.QUERIES: Tuned(128, 64, 8, 2)},
}
