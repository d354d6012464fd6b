"""The dense mask on a device."""

import numpy as np
import pytest
import torch
from hypothesis import given

from longca.lowering import dense
from longca.masks import Mask
from tests.helpers.kernels.masks_for_tests import (
    NOTHING_VISIBLE,
    PATTERNS,
    band_masks,
    grid_masks,
    pattern_mask,
)
from tests.helpers.support import examples


def check(mask: Mask) -> None:
    lowered = dense.dense_mask(mask, "cpu")
    assert lowered.dtype == torch.bool
    assert np.array_equal(lowered.numpy(), mask.dense())


@pytest.mark.parametrize("name", PATTERNS)
def test_patterns(name: str):
    check(pattern_mask(name))


@examples(60)
@given(mask=band_masks(max_groups=2) | grid_masks())
def test_any_mask(mask: Mask):
    check(mask)


@pytest.mark.parametrize("mask", NOTHING_VISIBLE, ids=repr)
def test_nothing_visible(mask: Mask):
    check(mask)


def test_rows_in_chunks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dense, "_CHUNK_ELEMENTS", 1000)
    check(pattern_mask("global_sliding_window"))
