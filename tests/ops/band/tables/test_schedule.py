"""Tile schedules of band attention against the raster: every visible pair once, and no other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longca.masks import Mask
from tests.helpers.kernels.masks_for_tests import (
    NOTHING_VISIBLE,
    PATTERNS,
    band_masks,
    complementary_masks,
    grid_masks,
    pattern_mask,
)
from tests.helpers.masks.strategies import quick
from tests.helpers.ops.schedule_raster import check

SIZES = [(16, 8), (8, 32), (64, 64)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.sample(2)
def test_patterns(name: str, sizes: tuple[int, int]) -> None:
    check(pattern_mask(name), *sizes)
    check(pattern_mask(name), *sizes, most=2)


@pytest.mark.parametrize("mask", NOTHING_VISIBLE, ids=str)
def test_nothing_visible(mask: Mask) -> None:
    check(mask, 16, 8)


@quick
@given(
    band_masks(max_groups=2) | complementary_masks() | grid_masks(),
    st.sampled_from(SIZES),
    st.sampled_from([None, 1, 3]),
)
def test_random_masks(mask: Mask, sizes: tuple[int, int], most: int | None) -> None:
    check(mask, *sizes, most=most)
