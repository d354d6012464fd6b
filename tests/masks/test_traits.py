"""Traits against brute force on the raster, however a mask is cut into bands."""

import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longca.masks import Mask, band, build_mask
from longca.masks.grid import BlockGrid
from longca.masks.traits import diagonal_segments
from tests.helpers.masks.strategies import documents, masks, patchworks, quick, shatter


def most_runs(raster):
    """Most separate runs in a row of a (G, Sq, Sk) raster."""
    padded = np.pad(raster.astype(int), ((0, 0), (0, 0), (1, 0)))
    return int((np.diff(padded, axis=2) == 1).sum(axis=2).max(initial=0))


def square_window(seqlen, bounds, left, right):
    """Raster of diagonal squares under one window; -1 is no bound."""
    number = np.searchsorted(bounds, np.arange(seqlen), side="right")
    offset = np.arange(seqlen)[None] - np.arange(seqlen)[:, None]
    inside = number[:, None] == number[None]
    return inside & ((left < 0) | (offset >= -left)) & ((right < 0) | (offset <= right))


def brute_segments(raster):
    """(bounds, window) with the fewest segments, of those the one with -1 where it may be; None if there is
    none."""
    seqlen = len(raster)
    free = [t for t in range(1, seqlen) if not raster[:t, t:].any() and not raster[t:, :t].any()]
    if not raster.diagonal().all():
        return None  # in a segment each token sees itself
    for count in range(len(free) + 1):
        for inner in combinations(free, count):
            bounds = [0, *inner, seqlen]
            for left in range(-1, max(np.diff(bounds))):
                for right in range(-1, max(np.diff(bounds))):
                    if np.array_equal(square_window(seqlen, bounds, left, right), raster):
                        return bounds, (left, right)
    return None


def brute(mask):
    """All traits of small masks; of the segments only where all groups are equal squares."""
    raster = mask.dense().reshape(mask.num_groups, mask.seqlen_q, mask.seqlen_k)
    square = mask.seqlen_q == mask.seqlen_k
    same = square and all(np.array_equal(raster[0], other) for other in raster[1:])
    segments = brute_segments(raster[0]) if same and mask.seqlen_q else None
    lower = np.tri(mask.seqlen_q, mask.seqlen_k, dtype=bool)
    return {
        "full": bool(raster.all()),
        "causal": square and all(np.array_equal(entry, lower) for entry in raster),
        "num_segments": len(segments[0]) - 1 if segments else 0,
        "window": segments[1] if segments else None,
        "empty_rows": bool((~raster.any(axis=2)).any()),
        "max_row_intervals": most_runs(raster),
        "max_col_intervals": most_runs(raster.transpose(0, 2, 1)),
    }


def assert_traits(mask):
    traits = mask.traits
    expected = brute(mask)
    assert {key: getattr(traits, key) for key in expected} == expected
    assert traits.num_bands == sum(len(bands) for bands in mask.groups)
    assert (traits.seqlen_q, traits.seqlen_k, traits.num_groups) == (
        mask.seqlen_q,
        mask.seqlen_k,
        mask.num_groups,
    )
    assert traits.per_head == (mask.num_groups > 1)


@quick
@given(masks(max_seqlen=7))
def test_patterns_by_brute_force(mask):
    assert_traits(mask)


@quick
@given(masks(max_seqlen=40), st.integers(0, 99))
def test_traits_do_not_depend_on_the_bands(mask, seed):
    """A block grid's `block_size` aside, which bands do not have."""
    pieces = shatter(mask, seed)
    assert np.array_equal(pieces.dense(), mask.dense())
    expected = replace(mask.traits, num_bands=pieces.traits.num_bands, block_size=None, is_block_grid=False)
    assert pieces.traits == expected


@quick
@given(patchworks(max_size=9), st.integers(0, 99))
def test_patchworks_by_brute_force(mask, seed):
    assert_traits(mask)
    assert_traits(shatter(mask, seed))


@quick
@given(masks(max_seqlen=24), st.integers(1, 4), st.data())
def test_parts_by_brute_force(mask, world, data):
    """Parts that a rank sees: pieces that are not square, grids with empty blocks, nothing at all."""
    striped = mask.stripe(data.draw(st.integers(0, world - 1)), data.draw(st.integers(0, world - 1)), world)
    rows = sorted(data.draw(st.integers(0, striped.seqlen_q)) for _ in range(2))
    cols = sorted(data.draw(st.integers(0, striped.seqlen_k)) for _ in range(2))
    piece = striped.crop(tuple(rows), tuple(cols))
    raster = piece.dense().reshape(piece.num_groups, piece.seqlen_q, piece.seqlen_k)
    assert piece.traits.max_row_intervals == most_runs(raster)
    assert piece.traits.max_col_intervals == most_runs(raster.transpose(0, 2, 1))
    assert piece.traits.empty_rows == bool((~raster.any(axis=2)).any())
    assert piece.traits.full == raster.all()


@quick
@given(st.data(), st.integers(2, 96), st.integers(-1, 96), st.integers(-1, 96), st.integers(0, 99))
def test_windows_over_documents(data, seqlen, left, right, seed):
    """One window cut to documents of any length, some shorter than it."""
    lengths = data.draw(documents(seqlen))
    bounds = np.cumsum([0, *lengths])
    start = bounds[:-1]
    end = bounds[1:]
    lo = -band.INF if left < 0 else -left
    hi = band.INF if right < 0 else right
    mask = shatter(Mask(seqlen, seqlen, (band.make(start, end, start, end, lo, hi),)), seed)
    segments = diagonal_segments(mask)
    assert segments is not None
    assert np.array_equal(square_window(seqlen, segments.bounds, *segments.window), mask.dense())
    if max(lengths) == 1 or left == right == 0:
        assert segments.bounds.tolist() == [0, seqlen] and segments.window == (0, 0)
    else:
        assert np.array_equal(segments.bounds, bounds)
        longest = max(lengths) - 1
        assert segments.window == (left if left < longest else -1, right if right < longest else -1)


@pytest.mark.parametrize(
    ("name", "params", "num_segments", "window"),
    [
        ("full", {}, 1, (-1, -1)),
        ("causal", {}, 1, (-1, 0)),
        ("full_document", {"documents": [30, 2, 32]}, 3, (-1, -1)),
        ("causal_document", {"documents": [30, 1, 33]}, 3, (-1, 0)),
        ("full_document", {"documents": [1] * 64}, 1, (0, 0)),
        ("sliding_window", {"window": 7}, 1, (7, 7)),
        ("sliding_window", {"window": 0}, 1, (0, 0)),
        ("sliding_window", {"window": 64}, 1, (-1, -1)),
        ("causal_sliding_window", {"window": 7}, 1, (7, 0)),
        ("shared_question", {"documents": [30, 2, 32]}, 0, None),
        ("causal_blockwise", {"documents": [64]}, 1, (-1, 0)),
        ("prefix_lm", {}, 0, None),
        ("global_sliding_window", {"num_global": 4, "window": 4}, 0, None),
        ("block_causal_document", {"block": 8}, 0, None),
        ("block_sparse_uniform", {"block": 8, "num_kv_heads": 2}, 0, None),
        ("block_sparse_uniform", {"block": 8, "num_kv_heads": 2, "density": 1.0}, 1, (-1, -1)),
        ("block_sparse_variable", {"mean_block": 8, "num_kv_heads": 2, "density": 1.0}, 1, (-1, -1)),
    ],
)
def test_segments_of_patterns(name, params, num_segments, window):
    traits = build_mask(name, seqlen=64, **params).traits
    assert (traits.num_segments, traits.window) == (num_segments, window)


def test_documents_that_need_different_windows_share_none():
    wide = band.make([0, 20], [20, 40], [0, 20], [20, 40], [-5, -6], 0)
    assert diagonal_segments(Mask(40, 40, (wide,))) is None
    whole_but_longer = band.make([0, 5], [5, 40], [0, 5], [5, 40], [-band.INF, -3], 0)
    assert diagonal_segments(Mask(40, 40, (whole_but_longer,))) is None


def test_equal_area_is_not_enough_for_a_window():
    window = band.make(0, 10, 0, 10, 0, 1)
    as_many = band.make(
        [10, 11, 12], [11, 12, 13], [10, 11, 12], [13, 13, 13], 0, [2, 0, 0]
    )  # reaches 2, sees as many
    assert band.areas(as_many).sum() == band.areas(band.make(10, 13, 10, 13, 0, 1)).sum()
    assert diagonal_segments(Mask(13, 13, (np.concatenate([window, as_many]),))) is None


def test_the_diagonal_may_be_one_band_over_all_documents():
    start = np.array([0, 5, 6])
    end = np.array([5, 6, 12])
    pieces = [
        band.make(0, 12, 0, 12, 0, 0),
        band.make(start, end, start, end, hi=-1),
        band.make(start, end, start, end, lo=1),
    ]
    for parts, window in ((pieces[:2], (-1, 0)), (pieces, (-1, -1))):
        segments = diagonal_segments(Mask(12, 12, (np.concatenate(parts),)))
        assert segments.bounds.tolist() == [0, 5, 6, 12] and segments.window == window


@pytest.mark.parametrize(
    "bands",
    [
        [[0, 8, 0, 3, -99, 99], [0, 8, 3, 8, 0, 99]],  # they part where the second begins to move
        [[0, 8, 0, 4, -99, 0], [0, 8, 0, 9, 1, 99]],  # they part where the first stops moving
        [
            [0, 1, 0, 2, -99, 99],
            [1, 2, 2, 3, -99, 99],
            [1, 2, 5, 6, -99, 99],
        ],  # one row ends where the next begins
        [[0, 9, 0, 9, -1, -1], [0, 9, 0, 9, 0, 0], [0, 9, 0, 9, 2, 2]],  # both always move
    ],
)
def test_runs_of_bands_that_move(bands):
    mask = Mask(9, 9, (np.array(bands),))
    raster = mask.dense()[None]
    assert mask.traits.max_row_intervals == most_runs(raster) == 2
    assert mask.traits.max_col_intervals == most_runs(raster.transpose(0, 2, 1))
    flipped = Mask(9, 9, (np.array([[k0, k1, q0, q1, -hi, -lo] for q0, q1, k0, k1, lo, hi in bands]),))
    assert flipped.traits.max_col_intervals == 2
    turned = Mask(
        9, 9, (np.array([[9 - q1, 9 - q0, 9 - k1, 9 - k0, -hi, -lo] for q0, q1, k0, k1, lo, hi in bands]),)
    )
    assert turned.traits.max_row_intervals == 2


def test_a_token_that_sees_nothing_is_in_no_segment():
    assert diagonal_segments(Mask(4, 4, (band.make(0, 3, 0, 3),))) is None
    assert diagonal_segments(Mask(4, 4, (band.make(0, 4, 0, 4, 1, 2),))) is None
    assert diagonal_segments(Mask(4, 4, (np.empty((0, 6), dtype=np.int64),))) is None
    assert diagonal_segments(Mask(4, 5, (band.make(0, 4, 0, 5),))) is None


def test_head_groups_must_agree():
    causal = band.make(0, 8, 0, 8, hi=0)
    full = band.make(0, 8, 0, 8)
    halves = band.make([0, 4], [4, 8], [0, 4], [4, 8])
    assert Mask(8, 8, (causal, causal)).traits.causal
    assert Mask(8, 8, (full, full)).traits.full
    for other in (full, halves):
        traits = Mask(8, 8, (causal, other)).traits
        assert not traits.causal and not traits.full and traits.num_segments == 0
    skewed = Mask(8, 8, (full, band.make(0, 8, 0, 8, hi=-1), causal))  # the area of three triangles and more
    assert not skewed.traits.causal


def test_equal_area_is_not_enough_for_causal():
    upper = Mask(8, 8, (band.make(0, 8, 0, 8, lo=0),))
    assert upper.area == build_mask("causal", seqlen=8).area
    assert not upper.traits.causal and upper.traits.window == (0, -1)


def test_grids():
    blocks = np.eye(3, dtype=bool)[None]
    bounds = np.array([[0, 2, 5, 9]])
    traits = Mask(9, 9, grid=BlockGrid(blocks, bounds, bounds)).traits
    assert (traits.num_segments, traits.window, traits.block_size, traits.is_block_grid) == (
        3,
        (-1, -1),
        None,
        True,
    )
    assert build_mask("block_sparse_uniform", seqlen=64, block=8).traits.block_size == (8, 8)


def test_long_masks_are_told_from_few_rows():
    """512K tokens, 64 groups of blocks: nothing here may grow with the raster, or this test would not end."""
    lengths = np.full(1 << 12, 1 << 7)
    traits = build_mask("prefix_lm_document", seqlen=1 << 19, documents=lengths).traits
    assert traits.max_row_intervals == 1 and not traits.empty_rows and traits.num_segments == 0
    wide = build_mask("global_sliding_window", seqlen=1 << 19).traits
    assert (wide.max_row_intervals, wide.max_col_intervals) == (2, 2)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(1, 1), (1, 3), (2, 2), (6, 6), (6, 4)])
def test_full_masks_of_one_band_and_of_several(seqlen_q: int, seqlen_k: int, groups: int):
    whole = (0, seqlen_q, 0, seqlen_k, -math.inf, math.inf)
    below = (0, seqlen_q, 0, seqlen_k, -math.inf, 0)
    above = (0, seqlen_q, 0, seqlen_k, 1, math.inf)
    for bands in ([whole], [below, above]):
        mask = Mask.from_bands(seqlen_q, [np.array(bands)] * groups, seqlen_k=seqlen_k)
        assert mask.traits.full
        assert_traits(mask)
