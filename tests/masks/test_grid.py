"""The block grid apart from the patterns that draw one."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longca.core.errors import UserError
from longca.core.plugin import Registry
from longca.core.schema import CallSpec
from longca.masks import Mask, band, build_mask
from longca.masks.grid import BlockGrid
from tests.helpers.masks.strategies import quick


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
    for q_bounds, k_bounds in (
        ([[0, 4]], [[0, 4]]),
        ([[1, 4]], right),
        ([[0, 4]], [[0, 5, 4]]),
        ([[0, 4]] * 2, right),
    ):
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
    length = (1 << 24) + 3
    num_blocks = 5
    bounds = np.array([[0, 1, 2, 3, 4, length]])
    blocks = BlockGrid(np.ones((1, num_blocks, num_blocks), dtype=bool), bounds, bounds)
    assert blocks.areas().tolist() == [length * length]
    assert blocks.areas().sum() == band.areas(blocks.bands(0)).sum()


@quick
@given(st.data(), st.integers(1, 3), st.integers(1, 4), st.integers(1, 4))
def test_block_maps(data, num_groups, num_q, num_k):
    """Against the definition: a pair is visible iff the block of its query and the block of its key are."""

    def sizes(count, total):
        cuts = sorted(data.draw(st.integers(0, total)) for _ in range(count - 1))
        return np.diff([0, *cuts, total])

    seqlen_q = data.draw(st.integers(1, 12))
    seqlen_k = data.draw(st.integers(1, 12))
    sizes_q = np.stack([sizes(num_q, seqlen_q) for _ in range(num_groups)])
    sizes_k = np.stack([sizes(num_k, seqlen_k) for _ in range(num_groups)])
    count = num_groups * num_q * num_k
    visible = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count))).reshape(
        num_groups, num_q, num_k
    )
    mask = Mask.from_block_map(sizes_q, torch.from_numpy(sizes_k), visible[None])
    expected = np.stack(
        [
            np.repeat(np.repeat(of_group, rows, axis=0), cols, axis=1)
            for of_group, rows, cols in zip(visible, sizes_q, sizes_k, strict=True)
        ]
    )
    assert np.array_equal(mask.dense().reshape(expected.shape), expected) and mask.area == expected.sum()
    form = mask.to_block_map()
    assert Mask.from_block_map(form.sizes_q, form.sizes_k, form.visible) == mask
    assert (form.sizes_q.sum(axis=1) == seqlen_q).all() and (form.sizes_k.sum(axis=1) == seqlen_k).all()


def test_a_block_map_of_one_size():
    mask = Mask.from_block_map(64, 128, torch.tensor([[True, False], [True, True], [False, True]]))
    assert (mask.seqlen_q, mask.seqlen_k, mask.traits.block_size) == (192, 256, (64, 128))
    assert mask == Mask.from_block_map([64] * 3, [[128, 128]], [[True, False], [True, True], [False, True]])


@pytest.mark.parametrize(
    ("sizes", "kernels"),
    [
        (64, {"vsa", "vsa_triton", "cudnn_bsa", "flashinfer", "band"}),
        (128, {"vsa", "vsa_triton", "cudnn_bsa", "flashinfer", "band"}),
        ([192, 64, 100, 156], {"flashinfer", "band"}),
    ],
)
def test_block_kernels_take_a_block_map(sizes, kernels):
    visible = np.random.default_rng(0).random((2, 4, 4)) < 0.5
    visible[:, :, 0] = True
    traits = Mask.from_block_map(sizes, sizes, visible).traits
    call = CallSpec(num_q_heads=2, num_kv_heads=2, head_dim=128, dtype="bf16", direction="fwd")
    asked = ("vsa", "vsa_triton", "cudnn_bsa", "flashinfer", "band")
    assert {
        name for name in asked if Registry("kernel").load(name).supports(call, traits, "cuda") is None
    } == kernels


def test_a_mask_without_blocks_has_no_block_map():
    with pytest.raises(
        UserError, match=r"A block map cannot hold <Mask causal .*: the mask is not made of blocks"
    ):
        build_mask("causal", seqlen=8).to_block_map()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (([4, 4], [4, 4], [[1, 0], [0, 1]]), r"`visible` must be bool .*, and it is int64 \(2, 2\)"),
        (([4, 4], [4], [[True, False]]), r"sizes_q must be \(1,\) or \(1, 1\), .*, and they are \(2,\)"),
        (([4], [4, 4.5], [[True, False]]), "sizes_k must be whole numbers"),
        (
            ([8], [9, -1], [[True, False]]),
            "sizes_k must be whole numbers of at least 0, and -1 is among them",
        ),
        (
            ([8], [[4, 4], [4, 5]], np.ones((2, 1, 2), bool)),
            "one sum in all head groups, and that of group 0 is 8, of group 1 9",
        ),
        (
            ([8], [8], np.ones((3, 2, 1, 1), bool)),
            r"`visible` has 3 batch entries, and a mask is that of one: give visible\[entry\]",
        ),
        (([8], [0], [[True]]), "1 to 2147483647 queries"),
    ],
)
def test_what_is_no_block_map_is_refused_in_one_line(given, message):
    with pytest.raises(UserError, match=message) as error:
        Mask.from_block_map(*given)
    assert "\n" not in str(error.value)
