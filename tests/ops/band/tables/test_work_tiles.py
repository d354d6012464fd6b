"""Work tiles: those of several tile sizes are made together as alone, and narrow blocks come first."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longca.masks import Mask, build_mask
from longca.ops.band.config import SM90_FORWARD, BandKernel, choose_tiles
from longca.ops.band.plan import make_schedules, plan_band_attention
from longca.ops.band.tables.schedule import NARROW, TileSpec
from tests.helpers.kernels.masks_for_tests import band_masks, complementary_masks, grid_masks, rasters
from tests.helpers.masks.strategies import quick
from tests.helpers.ops.schedule_raster import raster

CPU = torch.device("cpu")
HOPPER = (9, 0)
WANTED = st.builds(
    TileSpec,
    st.sampled_from([8, 16, 64]),
    st.sampled_from([8, 64]),
    st.booleans(),
    st.sampled_from([0.0, 0.1, 1.0]),
    st.sampled_from([1, 3]),
    st.booleans(),
    narrow_n=st.sampled_from([0, 2, 8]),
)


@quick
@given(
    band_masks(max_groups=2) | complementary_masks() | grid_masks(), st.lists(WANTED, min_size=2, max_size=3)
)
def test_lines_do_not_depend_on_those_made_beside_them(mask: Mask, wanted: list[TileSpec]) -> None:
    for entry, beside in zip(wanted, make_schedules(mask, wanted, CPU), strict=True):
        (alone,) = make_schedules(mask, [entry], CPU)
        assert (alone.tile_m, alone.tile_n, alone.num_slots) == (
            beside.tile_m,
            beside.tile_n,
            beside.num_slots,
        )
        for mine, other in zip(alone.tables, beside.tables, strict=True):
            torch.testing.assert_close(mine, other, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "params", "count"),
    [
        ("causal_sliding_window", {"window": 256}, 50),
        ("causal_sliding_window", {"window": 250}, 50),
        ("causal_sliding_window", {"window": 300}, 4),
        ("sliding_window", {"window": 256}, 40),
        ("causal", {}, 14),
    ],
    ids=str,
)
def test_narrow_blocks_of_the_forward_kernel(name: str, params: dict[str, int], count: int) -> None:
    """Row tiles of 16 queries see 15 columns more than a window has; under a causal mask every eighth ends
    with 16 columns, or 32."""
    mask = build_mask(name, seqlen=1024, **params)
    (spec,) = [TileSpec(16, 128, False, narrow_n=SM90_FORWARD.narrow_n)]
    (schedule,) = make_schedules(mask, [spec], CPU)
    np.testing.assert_array_equal(raster(schedule, 1024, 1024, spec.narrow_n), rasters(mask))
    assert (schedule.work_tiles[..., NARROW] > 0).sum() == count
    plan = plan_band_attention(
        mask, num_q_heads=8, num_kv_heads=1, head_dim=128, device=CPU, tiles=choose_tiles(128, HOPPER)
    )
    torch.testing.assert_close(
        plan.kernels[BandKernel.FORWARD][0].work_tiles, schedule.work_tiles, rtol=0, atol=0
    )
    assert all(
        (schedule.work_tiles[..., NARROW] == 0).all()
        for kernel, (schedule, _) in plan.kernels.items()
        if kernel is not BandKernel.FORWARD
    )
