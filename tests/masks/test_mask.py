"""The mask's own face: cutting, moving, identity."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longca.masks import Mask, band, build_mask
from longca.masks.grid import BlockGrid
from tests.helpers.masks.definitions import DEFINITIONS
from tests.helpers.masks.strategies import DYNAMIC, masks, patchworks, quick


def stack(mask):
    """Raster with the head groups as first axis, whatever their number."""
    return mask.dense().reshape(mask.num_groups, mask.seqlen_q, mask.seqlen_k)


def part(data, length):
    return tuple(sorted((data.draw(st.integers(0, length)), data.draw(st.integers(0, length)))))


def of_every_kind(test):
    """Runs the test on bands of a pattern, on block grids and on bands like no pattern; `kind` draws the
    mask."""
    kinds = [
        masks(max_seqlen=40, names=tuple(DEFINITIONS)),
        masks(max_seqlen=40, names=DYNAMIC),
        patchworks(),
    ]
    return pytest.mark.parametrize("kind", kinds, ids=["static", "dynamic", "patchwork"])(test)


@of_every_kind
@quick
@given(data=st.data())
def test_cut_and_crop_are_slicing(kind, data):
    mask = data.draw(kind)
    raster = stack(mask)
    rows = part(data, mask.seqlen_q)
    cols = part(data, mask.seqlen_k)
    inside = raster[:, slice(*rows), slice(*cols)]
    cropped = mask.crop(rows, cols)
    cut = mask.cut(rows, cols)
    assert np.array_equal(stack(cropped), inside)
    assert cropped.area == cut.area == inside.sum()
    expected = np.zeros_like(raster)
    expected[:, slice(*rows), slice(*cols)] = inside
    assert np.array_equal(stack(cut), expected)
    assert (cropped.grid is None) == (mask.grid is None) == (cut.grid is None)


@of_every_kind
@quick
@given(data=st.data(), dq=st.integers(-45, 45), dk=st.integers(-45, 45))
def test_shift_drops_what_leaves(kind, data, dq, dk):
    mask = data.draw(kind)
    raster = stack(mask)
    expected = np.zeros_like(raster)
    for group, i, j in zip(*np.nonzero(raster), strict=True):
        if 0 <= i + dq < mask.seqlen_q and 0 <= j + dk < mask.seqlen_k:
            expected[group, i + dq, j + dk] = True
    shifted = mask.shift(dq, dk)
    assert np.array_equal(stack(shifted), expected)
    assert shifted.area == expected.sum()


@of_every_kind
@quick
@given(data=st.data(), world=st.integers(1, 7))
def test_stripe_is_strided_slicing(kind, data, world):
    mask = data.draw(kind)
    q_rank = data.draw(st.integers(0, world - 1))
    k_rank = data.draw(st.integers(0, world - 1))
    striped = mask.stripe(q_rank, k_rank, world)
    expected = stack(mask)[:, q_rank::world, k_rank::world]
    assert np.array_equal(stack(striped), expected)
    assert striped.area == expected.sum()


@of_every_kind
@quick
@given(data=st.data(), world=st.integers(1, 5))
def test_parts_of_parts(kind, data, world):
    """Operations compose: a crop of a stripe is the slice of the slice, and bands stay disjoint."""
    mask = data.draw(kind)
    rows = part(data, -(-mask.seqlen_q // world))
    cols = part(data, -(-mask.seqlen_k // world))
    piece = mask.stripe(0, 0, world).crop(rows, cols)
    assert np.array_equal(stack(piece), stack(mask)[:, ::world, ::world][:, slice(*rows), slice(*cols)])
    assert all(band.overlap(bands) is None for bands in piece.groups)


def test_crop_may_reach_beyond():
    for mask in (
        build_mask("sliding_window", seqlen=6, window=2),
        build_mask("block_sparse_uniform", seqlen=6, block=2),
    ):
        wide = mask.crop((-2, 8), (-1, 4))
        expected = np.zeros((10, 5), dtype=bool)
        expected[2:8, 1:] = mask.dense()[:, :4]
        assert np.array_equal(wide.dense(), expected)
        assert np.array_equal(mask.cut((-2, 3), (-1, 9)).dense(), mask.cut((0, 3), (0, 6)).dense())


def test_select_groups():
    grid = build_mask("block_sparse_uniform", seqlen=32, block=4, num_kv_heads=4)
    assert np.array_equal(grid.select_groups(1, 3).dense(), grid.dense()[1:3])
    assert grid.select_groups(2, 3).num_groups == 1
    banded = Mask(4, 4, (band.make(0, 4, 0, 4), band.make(0, 4, 0, 4, hi=0), band.make(0, 2, 0, 4)))
    assert np.array_equal(banded.select_groups(1, 3).dense(), banded.dense()[1:3])
    shared = build_mask("causal", seqlen=4)
    assert shared.select_groups(0, 1) is shared


def test_bands_are_for_one_group_only():
    mask = build_mask("block_sparse_uniform", seqlen=32, block=4, num_kv_heads=2)
    with pytest.raises(ValueError, match="2 head groups"):
        _ = mask.bands


def test_bands_of_a_grid_are_a_sequence():
    mask = build_mask("block_sparse_variable", seqlen=64, mean_block=8, num_kv_heads=3)
    assert len(mask.groups) == 3
    assert [len(bands) for bands in mask.groups] == [len(mask.groups[group]) for group in (0, 1, 2)]
    assert np.array_equal(mask.groups[-1], mask.groups[1:][1])
    assert np.array_equal(mask.groups[0], band.normal(mask.groups[0]))
    with pytest.raises(IndexError):
        _ = mask.groups[3]


def test_a_mask_is_bands_or_a_grid():
    grid = BlockGrid(np.ones((1, 1, 1), dtype=bool), np.array([[0, 2]]), np.array([[0, 2]]))
    with pytest.raises(ValueError, match="one of the two"):
        Mask(2, 2)
    with pytest.raises(ValueError, match="one of the two"):
        Mask(2, 2, (band.make(0, 2, 0, 2),), grid=grid)


def test_a_mask_does_not_change():
    params = {"window": 3}
    mask = Mask(8, 8, (band.make(0, 8, 0, 8, -3, 3),), params=params)
    params["window"] = 4
    assert mask.params == {"window": 3}
    with pytest.raises(TypeError):
        mask.params["window"] = 5  # type: ignore[index]
    with pytest.raises(ValueError, match="read-only"):
        mask.bands[0, 0] = 1


def test_given_documents_are_copied():
    documents = np.array([3, 5])
    mask = build_mask("full_document", seqlen=8, documents=documents)
    documents[0] = 99
    assert mask.params["documents"].tolist() == [3, 5]
    assert mask.traits.num_segments == 2


def test_masks_can_be_sent_to_another_process():
    mask = build_mask("prefix_lm_document", seqlen=8, documents=[3, 5])
    copy = pickle.loads(pickle.dumps(mask))
    assert copy.digest == mask.digest and copy.traits == mask.traits and copy.name == mask.name
    assert copy.params["documents"].tolist() == [3, 5]


def test_what_others_keep_with_a_mask_stays_out_of_pickles():
    mask = build_mask("causal", seqlen=8)
    mask.kept["plan"] = lambda: None  # cannot be pickled
    assert mask.kept.keys() == {"plan"}
    copy = pickle.loads(pickle.dumps(mask))
    assert copy.kept == {} and copy.digest == mask.digest


def test_digest_follows_the_bands():
    first = build_mask("causal", seqlen=64)
    other = build_mask("causal_sliding_window", seqlen=64, window=64)
    assert first.digest == other.digest
    wider = Mask(64, 65, first.groups)
    shorter = build_mask("causal_sliding_window", seqlen=64, window=62)
    doubled = Mask(64, 64, (first.bands, first.bands))
    assert len({first.digest, wider.digest, shorter.digest, doubled.digest}) == 4


def test_digest_of_grids_follows_the_blocks():
    def digest(visible, q_bounds, k_bounds):
        blocks = BlockGrid(np.array([visible], dtype=bool), np.array([q_bounds]), np.array([k_bounds]))
        return Mask(q_bounds[-1], k_bounds[-1], grid=blocks).digest

    actual = [
        digest([[1, 0], [0, 1]], [0, 4, 8], [0, 4, 8]),
        digest([[0, 1], [1, 0]], [0, 4, 8], [0, 4, 8]),
        digest([[1, 0], [0, 1]], [0, 3, 8], [0, 4, 8]),
        digest([[1, 0], [0, 1]], [0, 4, 8], [0, 3, 8]),
        digest([[1, 0, 0, 1]], [0, 8], [0, 2, 4, 6, 8]),
        digest([[1], [0], [0], [1]], [0, 2, 4, 6, 8], [0, 8]),
    ]
    assert len(set(actual)) == len(actual)
    assert digest([[1, 0], [0, 1]], [0, 4, 8], [0, 4, 8]) == actual[0]


def test_what_a_record_keeps():
    mask = build_mask("prefix_lm_document", seqlen=12, documents=[3, 4, 5])
    assert mask.drawn == {"paper_compat": False, "num_documents": 3, "longest_document": 5}
    prefix = build_mask("prefix_lm", seqlen=12)
    assert prefix.drawn == {"paper_compat": False, "prefix": prefix.params["prefix"]}
    assert build_mask("sliding_window", seqlen=12, window=2).drawn == {"window": 2, "paper_compat": False}


def test_representation():
    assert repr(build_mask("causal", seqlen=4)) == "<Mask causal 4×4, density 0.6250>"
    assert repr(Mask(2, 4, (band.make(0, 1, 0, 2),))) == "<Mask of bands 2×4, density 0.2500>"
    assert "2 head groups" in repr(build_mask("block_sparse_uniform", seqlen=8, block=4, num_kv_heads=2))


def test_a_rank_may_hold_nothing():
    for mask in (build_mask("causal", seqlen=8), build_mask("block_sparse_uniform", seqlen=8, block=2)):
        empty = mask.crop((3, 3), (0, 8))
        assert empty.area == 0 and empty.density == 0 and empty.dense().shape == (0, 8)
        assert not empty.traits.empty_rows and empty.traits.max_row_intervals == 0
