"""Tile sizes of the Triton operators on Hopper, by head dim: the fastest of a sweep on an H200."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Tiling:
    """Tile sizes and compile options of one kernel."""

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
    64: Tuning(forward=Tiling(64, 128, 4, 3), keys=Tiling(128, 64, 4, 2), queries=Tiling(64, 64, 4, 3)),
    128: Tuning(forward=Tiling(128, 64, 4, 2), keys=Tiling(64, 64, 4, 2), queries=Tiling(64, 64, 4, 2)),
}

FA2_SPARSE = {  # (greatest head dim, block that divides the mask's) → tuning
    (64, 64): Tuning(forward=Tiling(64, 64, 4, 3), keys=Tiling(64, 64, 4, 2), queries=Tiling(64, 64, 4, 3)),
    (64, 128): Tuning(forward=Tiling(128, 64, 4, 3), keys=Tiling(64, 64, 4, 2), queries=Tiling(64, 64, 4, 3)),
    (128, 64): Tuning(forward=Tiling(64, 64, 4, 3), keys=Tiling(64, 64, 4, 2), queries=Tiling(64, 64, 4, 2)),
    (128, 128): Tuning(
        forward=Tiling(128, 64, 4, 2), keys=Tiling(64, 64, 4, 2), queries=Tiling(64, 64, 4, 2)
    ),
}


def flashmask_tuning(head_dim: int) -> Tuning:
    return FLASHMASK[64 if head_dim <= 64 else 128]


def sparse_tuning(head_dim: int, blocks: tuple[int, int]) -> Tuning:
    """Tiles cut so that they divide the blocks, which are multiples of 16: a matmul in Triton needs no
    less."""
    block = 128 if all(size % 128 == 0 for size in blocks) else 64
    tuning = FA2_SPARSE[64 if head_dim <= 64 else 128, block]

    def cut(tiling: Tiling) -> Tiling:
        tile_q, tile_k = (min(size & -size, tile) for size, tile in zip(blocks, tiling.tile, strict=True))
        return replace(tiling, tile_q=tile_q, tile_k=tile_k)

    return Tuning(cut(tuning.forward), cut(tuning.keys), cut(tuning.queries))
