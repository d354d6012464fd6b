"""Partitions of block masks."""

import pytest

from longca.cp.partition.sharding import make_sharding
from longca.cp.schedule.ring_and_gather import Ring
from tests.helpers.cp.plans import all_steps
from tests.helpers.kernels.masks_for_tests import uniform_grid


@pytest.mark.parametrize("name", ["contiguous", "zigzag", "heap-16", "stripes"])
def test_block_masks_stay_block_masks(name: str):
    mask = uniform_grid(128, 16, 16, 2, seed=0)
    plan = Ring().plan(mask, make_sharding(name, mask, 4))
    assert all(step.mask.grid is not None for step in all_steps(plan))
