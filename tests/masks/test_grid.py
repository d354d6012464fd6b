"""The block grid apart from the patterns that draw one."""

import numpy as np
import pytest

from longca.masks import Mask, band
from longca.masks.grid import BlockGrid


def grid(visible, q_bounds, k_bounds):
    return BlockGrid(np.array(visible, dtype=bool), np.array(q_bounds), np.array(k_bounds))


def test_block_size():
    assert grid([[[1, 0], [0, 1]]], [[0, 2, 4]], [[0, 3, 6]]).block_size == (2, 3)
    assert grid([[[1, 0], [0, 1]]], [[0, 2, 3]], [[0, 3, 6]]).block_size == (2, 3)
    assert grid([[[1, 0], [0, 1]]], [[0, 1, 4]], [[0, 3, 6]]).block_size is None
    assert grid([[[1]], [[1]]], [[0, 4], [0, 4]], [[0, 4], [0, 4]]).block_size == (4, 4)
    different = grid([[[1, 0]], [[0, 1]]], [[0, 4], [0, 4]], [[0, 2, 4], [0, 3, 4]])
    assert different.block_size is None
    assert grid(np.zeros((1, 0, 2)), [[0]], [[0, 2, 4]]).block_size is None


def test_bounds_must_fit_and_rise():
    right = [[0, 2, 4]]
    for q_bounds, k_bounds in (([[0, 4]], [[0, 4]]), ([[1, 4]], right), ([[0, 4]], [[0, 5, 4]]), ([[0, 4]] * 2, right)):
        with pytest.raises(ValueError, match="begin at 0 and never fall"):
            grid([[[1, 0]]], q_bounds, k_bounds)


def test_neighbouring_blocks_are_one_band():
    blocks = grid([[[1, 1, 0, 1], [0, 0, 0, 0]]], [[0, 2, 4]], [[0, 1, 2, 5, 7]])
    assert blocks.bands(0)[:, :4].tolist() == [[0, 2, 0, 2], [0, 2, 5, 7]]
    assert blocks.row_runs(0).tolist() == [2, 0]
    assert blocks.col_runs(0).tolist() == [1, 1, 0, 1]


def test_blocks_without_tokens_do_not_count():
    blocks = grid([[[1, 0, 1], [0, 1, 0], [1, 0, 1]]], [[0, 2, 2, 4]], [[0, 3, 3, 6]])
    assert blocks.row_runs(0).tolist() == [1, 1]
    assert blocks.col_runs(0).tolist() == [1, 1]
    assert blocks.bands(0)[:, :4].tolist() == [[0, 2, 0, 6], [2, 4, 0, 6]]
    assert blocks.areas().tolist() == [24]
    traits = Mask(4, 6, grid=blocks).traits
    assert traits.full and not traits.empty_rows


def test_a_crop_along_blocks_is_a_smaller_uniform_grid():
    blocks = grid(np.eye(4)[None], [[0, 2, 4, 6, 8]], [[0, 2, 4, 6, 8]])
    part = blocks.move(-2, 0, 4, 4)
    assert part.visible.tolist() == [[[False, True], [False, False]]]
    assert part.block_size == (2, 2)


def test_areas_of_large_grids_are_exact():
    length, num_blocks = (1 << 24) + 3, 5
    bounds = np.array([[0, 1, 2, 3, 4, length]])
    blocks = BlockGrid(np.ones((1, num_blocks, num_blocks), dtype=bool), bounds, bounds)
    assert blocks.areas().tolist() == [length * length]
    assert blocks.areas().sum() == band.areas(blocks.bands(0)).sum()
