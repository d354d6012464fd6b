"""The tile sizes of band attention's kernels, and the kernels that make gradients on Hopper."""

from dataclasses import replace

import torch

from longca.masks import build_mask
from longca.ops.band.config import PORTABLE_TILES, SM90_DKDV, SM90_DQ, SM90_FUSED, BandKernel, choose_tiles
from longca.ops.band.plan import plan_band_attention
from longca.ops.band.tables.schedule import AddOrder

CPU = torch.device("cpu")
HOPPER = (9, 0)


def test_what_makes_gradients_on_hopper() -> None:
    """Two kernels, or one for all gradients; blocks of less than its tiles keep the portable ones."""
    assert (
        choose_tiles(128, HOPPER)[BandKernel.DKDV] == SM90_DKDV
        and choose_tiles(128, HOPPER)[BandKernel.DQ] == SM90_DQ
    )
    assert (
        choose_tiles(128, HOPPER, block=128, block_rows=64)[BandKernel.DQ]
        == PORTABLE_TILES[128][BandKernel.DQ]
    )
    for order in AddOrder:
        tiles = choose_tiles(128, HOPPER, dq_order=order)
        assert tiles[BandKernel.DKDV] == replace(
            SM90_FUSED, in_order=order, stores_first=order is AddOrder.FROM_FIRST
        )
        assert BandKernel.DQ not in tiles
        short = choose_tiles(128, HOPPER, block=64, dq_order=order)
        assert all(short[use] == PORTABLE_TILES[128][use] for use in (BandKernel.DKDV, BandKernel.DQ))


def test_head_dim_64_has_hopper_kernels() -> None:
    """The same choice as for head dim 128, with its own tiles: blocks of 128 rows in one pass."""
    for how in ({}, {"dq_order": AddOrder.FROM_FIRST}, {"block": 64}, {"block": 128, "block_rows": 64}):
        tiles, as_of_128 = choose_tiles(64, HOPPER, **how), choose_tiles(128, HOPPER, **how)
        assert {use: tile.sm90 for use, tile in tiles.items()} == {
            use: tile.sm90 for use, tile in as_of_128.items()
        }
        assert all(tile == PORTABLE_TILES[64][use] for use, tile in tiles.items() if not tile.sm90)
    for order in AddOrder:
        plan = plan_band_attention(
            build_mask("causal", seqlen=1024),
            num_q_heads=8,
            num_kv_heads=1,
            head_dim=64,
            device=CPU,
            tiles=choose_tiles(64, HOPPER, dq_order=order),
        )
        schedule, config = plan.kernels[BandKernel.DKDV]
        assert (schedule.tile_m, schedule.tile_n, config.num_stages) == (128, 128, 2)
