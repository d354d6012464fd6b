"""The simulation of forward calls of band attention under limits from which on row tiles are split."""

import pytest

from benchmarks.band import splits
from longca.masks import build_mask


def test_uniform_work_takes_as_long_as_its_blocks():
    """64 heads of 64 row tiles of 64 blocks: 32 tiles for most programs, one less for the others."""
    found = splits.simulated(build_mask("full", seqlen=8192), 64, 64)
    tiles = -(-64 * 64 // splits.PROGRAMS)
    assert (
        found["present"].time_us
        == found["none"].time_us
        == pytest.approx(tiles * (64 * splits.BLOCK_US + splits.WORK_TILE_US))
    )
    assert found["present"].split == found["none"].split == 0 and found["earlier"].split == 1
    assert found["earlier"].time_us > 1.1 * found["present"].time_us, "partial results are written and read"


def test_heads_that_share_tiles_have_small_ones():
    found = splits.simulated(build_mask("causal", seqlen=8192), 64, 8)
    assert {one.split for one in found.values()} == {0} and len({one.time_us for one in found.values()}) == 1


def test_a_limit_saves_time_where_few_heads_have_long_rows():
    found = splits.simulated(build_mask("global_sliding_window", seqlen=8192), 2, 2)
    assert found["present"].split > 0 and found["present"].time_us < found["none"].time_us
