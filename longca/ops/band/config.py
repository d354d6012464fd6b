"""Tile sizes of band attention's kernels, chosen by measurements; docs/design/band-tuning.md says which."""

from dataclasses import dataclass, replace
from enum import Enum

from longca.ops.band.tables.backward_rule import AddOrder


class BandKernel(Enum):
    """The kernels that read tile schedules."""

    FORWARD = "forward"
    DKDV = "keys"  # dK and dV, over row tiles of keys; the fused kernel also computes dQ
    DQ = "queries"  # dQ, over row tiles of queries


@dataclass(frozen=True)
class TileConfig:
    """Tile sizes and variant of one kernel.

    Rows and columns refer to the score matrix, in which the query heads of a tile are packed. For row tiles
    of queries, `block_m` is `tile_m` of the schedule times these heads; for row tiles of keys, `block_n` is
    its `tile_n` times these heads.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int  # loads in flight
    # 0: one for each entry of full blocks, and one for partial ones; 1: one for all full blocks; 2: one for
    # all blocks
    loop: int = 1
    max_pack: int = 16  # query heads that share a tile, at most
    sm90: bool = False  # a kernel of `sm90.launch`, which defines the rest
    fused: bool = False  # sm90, dK and dV: the same kernel makes dQ
    # fused: order of additions to dQ; with a fixed order, sums are reproducible
    in_order: AddOrder = AddOrder.ANY
    # fused, in order: the first addend of a block is stored if the schedule allows it, so sums need no zeros
    stores_first: bool = False
    # fused: query heads of a KV head that a work tile processes before it adds dK and dV; 0: the plan chooses
    heads_per_item: int = 0
    kv_heads_per_section: int = 0  # KV heads whose work tiles start together; 0: the plan chooses
    # fused: items of a work tile and KV head that start together, each for `heads_per_item`; 0: the plan
    # chooses
    rounds_per_section: int = 0
    narrow_n: int = 0  # sm90, forward: computed columns of a work tile's narrow block (`TileSpec`); 0: all


# Head dim 128: the best of the sweep on one H200, 64:8 heads, bf16, 16K tokens (geometric means over masks of
# all kinds: forward 486, keys 554, queries 583 TFLOP/s). Head dim 64 was not swept: the same tiles, whose
# accumulators are half as large. Without packed heads (MHA), the same tiles hold tokens of one head.
PORTABLE_TILES = {
    64: {
        BandKernel.FORWARD: TileConfig(128, 64, 4, 3),
        BandKernel.DKDV: TileConfig(64, 64, 4, 2, loop=2),
        BandKernel.DQ: TileConfig(64, 64, 4, 2, loop=2),
    },
    128: {
        BandKernel.FORWARD: TileConfig(128, 64, 4, 2, loop=2),
        BandKernel.DKDV: TileConfig(64, 64, 4, 2, loop=2),
        BandKernel.DQ: TileConfig(64, 64, 4, 2, loop=2),
    },
}
# Without TMA and warp-group matmuls (sm_80 to sm_89): the largest tiles that fit into registers. Compiled,
# never measured.
BEFORE_HOPPER = {
    BandKernel.FORWARD: TileConfig(64, 64, 8, 2, loop=2),
    BandKernel.DKDV: TileConfig(64, 32, 8, 2, loop=2),
    BandKernel.DQ: TileConfig(64, 32, 8, 2, loop=2),
}


@dataclass(frozen=True)
class Sm90Tiles:
    """The tiles of the Hopper kernels for a head dim."""

    forward: TileConfig
    forward_short_blocks: TileConfig  # for short blocks of keys: a tile is any two of them
    dkdv: TileConfig  # for smaller blocks half of such a tile, and of `dq`, would be idle
    dq: TileConfig
    fused: TileConfig  # its blocks of `block_n` rows times the head dim are 64 × 128


SM90_DKDV = TileConfig(128, 64, 4, 3, sm90=True)
SM90_DQ = TileConfig(128, 64, 4, 3, sm90=True)
SM90_FUSED = TileConfig(128, 64, 4, 3, max_pack=1, sm90=True, fused=True)
SM90_FORWARD = TileConfig(128, 128, 4, 2, sm90=True, narrow_n=32)
SM90_FORWARD_SHORT_BLOCKS = TileConfig(128, 64, 4, 2, sm90=True)
# Head dim 64 was chosen on one H200: docs/design/band-head-dims.md.
SM90_TILES = {
    64: Sm90Tiles(
        TileConfig(128, 128, 4, 3, sm90=True, narrow_n=32),
        TileConfig(128, 64, 4, 3, sm90=True),
        TileConfig(128, 64, 4, 3, sm90=True),
        TileConfig(128, 128, 4, 3, sm90=True),
        TileConfig(128, 128, 4, 2, max_pack=1, sm90=True, fused=True),
    ),
    128: Sm90Tiles(SM90_FORWARD, SM90_FORWARD_SHORT_BLOCKS, SM90_DKDV, SM90_DQ, SM90_FUSED),
}


def has_hopper_kernels(head_dim: int, capability: tuple[int, int] | None) -> bool:
    """True if a GPU of this compute capability runs the kernels of `sm90` at this head dim."""
    return capability == (9, 0) and head_dim in SM90_TILES


def choose_tiles(
    head_dim: int,
    capability: tuple[int, int] | None,
    *,
    block: int | None = None,
    block_rows: int | None = None,
    dq_order: AddOrder | None = None,
) -> dict[BandKernel, TileConfig]:
    """The tile sizes of each kernel.

    Args:
        capability: compute capability of the GPU; None without one.
        block: keys of a block, if the mask is made of blocks.
        block_rows: its queries, times the query heads of a KV head.
        dq_order: the order in which the fused backward kernel accumulates dQ; if there is such a kernel, dQ
            has no tiles. None: dQ has a separate kernel.

    Raises:
        ValueError: there are no tile sizes for this head dim.
    """
    if head_dim not in PORTABLE_TILES:
        raise ValueError(
            f"band attention has head dims {' and '.join(map(str, PORTABLE_TILES))}; this one is {head_dim}"
        )
    if capability is not None and capability < (9, 0):
        return BEFORE_HOPPER
    tiles = dict(PORTABLE_TILES[head_dim])
    if has_hopper_kernels(head_dim, capability):
        hopper = SM90_TILES[head_dim]
        short = block is not None and block % 128 != 0
        tiles[BandKernel.FORWARD] = hopper.forward_short_blocks if short else hopper.forward
        if not short:
            if dq_order is not None:
                tiles[BandKernel.DKDV] = replace(
                    hopper.fused, in_order=dq_order, stores_first=dq_order is AddOrder.FROM_FIRST
                )
                del tiles[BandKernel.DQ]
            else:
                tiles[BandKernel.DKDV] = hopper.dkdv
                if block_rows is None or block_rows >= hopper.dq.block_m:
                    tiles[BandKernel.DQ] = hopper.dq
    return tiles
