"""Tile sizes of the Triton operators on Hopper, by head dim, as `benchmarks/tune_triton_rows.py` found them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tiling:
    """How one kernel is cut and compiled."""

    tile_q: int
    tile_k: int
    num_warps: int
    num_stages: int
    by_tma: bool = True

    @property
    def tile(self) -> tuple[int, int]:
        return self.tile_q, self.tile_k


@dataclass(frozen=True)
class Tuning:
    """The kernels of an operator: its forward, dK and dV by keys, dQ by queries."""

    forward: Tiling
    keys: Tiling
    queries: Tiling


FLASHMASK = {  # greatest head dim → tuning
    64: Tuning(forward=Tiling(128, 128, 8, 2), keys=Tiling(64, 128, 8, 3), queries=Tiling(128, 64, 8, 3)),
    128: Tuning(forward=Tiling(128, 64, 4, 2), keys=Tiling(64, 128, 8, 2), queries=Tiling(128, 64, 8, 3)),
}


def tuning_for(table: dict[int, Tuning], head_dim: int) -> Tuning:
    return table[min(size for size in table if size >= head_dim)]
