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
    loop: int = 1  # 0: one for each run of full steps, and one for partial ones; 1: one for all full steps; 2: one for all steps
    pack: int = 16  # query heads that share a tile, at most


TUNED = {
    64: {Use.FORWARD: Tuned(128, 64, 4, 3), Use.KEYS: Tuned(128, 64, 4, 2), Use.QUERIES: Tuned(128, 64, 4, 2)},
    128: {Use.FORWARD: Tuned(128, 64, 4, 2), Use.KEYS: Tuned(128, 64, 8, 2), Use.QUERIES: Tuned(128, 64, 8, 2)},
}
