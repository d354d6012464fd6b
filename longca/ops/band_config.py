"""Tile sizes of band attention's kernels: data, found by `python -m benchmarks.band_tune`; docs/band.md tells what was tried."""

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


# Head dim 128: the best of the sweep on one H200, 64:8 heads, bf16, of keys and queries at 16K (554 and 583 TFLOP/s over masks of all
# kinds); the forward pass as it was best by hand at 32K. Head dim 64 was not swept: the same tiles, whose accumulators are half as large.
# Without heads to share a tile (MHA), the same tiles hold tokens of one head.
TUNED = {
    64: {Use.FORWARD: Tuned(128, 64, 4, 3), Use.KEYS: Tuned(64, 64, 4, 2, loop=2), Use.QUERIES: Tuned(64, 64, 4, 2, loop=2)},
    128: {Use.FORWARD: Tuned(128, 64, 4, 2), Use.KEYS: Tuned(64, 64, 4, 2, loop=2), Use.QUERIES: Tuned(64, 64, 4, 2, loop=2)},
}
