"""The band algebra against rasters."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longca.masks import band
from tests.helpers.masks.strategies import quick, raw_bands

SIZE = 20


def plain(bands, size_q=SIZE, size_k=SIZE):
    """Bool raster, pair by pair, of bands in any form."""
    return np.array(
        [
            [
                any(
                    q0 <= i < q1 and k0 <= j < k1 and lo <= j - i <= hi
                    for q0, q1, k0, k1, lo, hi in bands.tolist()
                )
                for j in range(size_k)
            ]
            for i in range(size_q)
        ]
    )


@quick
@given(raw_bands())
def test_normal_form_keeps_the_pairs_and_is_tight(raw):
    expected = plain(raw)
    bands = band.normal(raw)
    assert np.array_equal(band.dense(bands, SIZE, SIZE), expected)
    assert len(bands) == expected.any()
    assert np.array_equal(band.normal(bands), bands)
    if len(bands):
        q0, q1, k0, k1, lo, hi = bands[0].tolist()
        rows = np.flatnonzero(expected.any(axis=1))
        cols = np.flatnonzero(expected.any(axis=0))
        assert (q0, q1, k0, k1) == (rows[0], rows[-1] + 1, cols[0], cols[-1] + 1)
        offsets = np.subtract(*np.nonzero(expected)[::-1])
        assert lo in (-band.INF, offsets.min()) and hi in (band.INF, offsets.max())
        assert (lo == -band.INF) == (offsets.min() == k0 - (q1 - 1)) and (hi == band.INF) == (
            offsets.max() == k1 - 1 - q0
        )


def test_offsets_that_do_not_bind_are_infinite():
    assert band.make(0, 4, 2, 6, -1, 5).tolist() == [[0, 4, 2, 6, -band.INF, band.INF]]
    assert band.make(0, 4, 2, 6, 0, 4).tolist() == [[0, 4, 2, 6, 0, 4]]


@quick
@given(raw_bands())
def test_areas_are_exact(raw):
    assert band.areas(band.normal(raw)).sum() == plain(raw).sum()


@quick
@given(raw_bands(), st.integers(0, SIZE), st.integers(0, SIZE), st.integers(0, SIZE), st.integers(0, SIZE))
def test_cut_is_slicing(raw, q0, q1, k0, k1):
    expected = np.zeros((SIZE, SIZE), dtype=bool)
    expected[q0:q1, k0:k1] = plain(raw)[q0:q1, k0:k1]
    assert np.array_equal(plain(band.cut(band.normal(raw), (q0, q1), (k0, k1))), expected)


@quick
@given(raw_bands(), st.integers(0, 9), st.integers(0, 9))
def test_shift_is_translation(raw, dq, dk):
    expected = np.zeros((SIZE + 9, SIZE + 9), dtype=bool)
    expected[dq : dq + SIZE, dk : dk + SIZE] = plain(raw)
    moved = band.shift(band.normal(raw), dq, dk)
    assert np.array_equal(plain(moved, SIZE + 9, SIZE + 9), expected)
    assert np.array_equal(band.normal(moved), moved)
    assert np.array_equal(band.shift(moved, -dq, -dk), band.normal(raw))


@quick
@given(raw_bands(), st.integers(1, 7), st.data())
def test_stripe_is_strided_slicing(raw, world, data):
    q_rank = data.draw(st.integers(0, world - 1))
    k_rank = data.draw(st.integers(0, world - 1))
    striped = band.stripe(band.normal(raw), q_rank, k_rank, world)
    assert len(striped) <= 1
    expected = plain(raw)[q_rank::world, k_rank::world]
    assert np.array_equal(plain(striped, *expected.shape), expected)


@quick
@given(raw_bands(), raw_bands())
def test_intersection_and_overlap(one, other):
    both = plain(one) & plain(other)
    assert np.array_equal(plain(band.normal(band.intersect(one, other))), both)
    pair = np.concatenate([band.normal(one), band.normal(other)])
    assert band.overlap(pair) == ((0, 1) if both.any() else None)


@quick
@given(st.lists(raw_bands(), max_size=6), st.sampled_from([2, band.MOST_COMPARED]))
def test_overlap_of_several_bands(raws, compared):
    bands = np.concatenate([np.empty((0, 6), dtype=np.int64), *(band.normal(raw) for raw in raws)])
    rasters = [plain(row[None]) for row in bands]
    pairs = [
        (entry, other)
        for entry in range(len(bands))
        for other in range(entry + 1, len(bands))
        if (rasters[entry] & rasters[other]).any()
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(band, "MOST_COMPARED", compared)
        overlap = band.overlap(bands)
    assert overlap in pairs if pairs else overlap is None


def test_an_overlap_is_told_with_its_place():
    text = band.overlap_text(band.make([0, 0], 8, [0, 0], [2, 8], [-band.INF, -3], 0))
    assert text == "[0 8 0 2 -∞ 0] and [0 8 0 8 -3 0] are not: both hold queries 0 to 4 of keys 0 to 1"


NUMBER = np.arange(20_000)


@pytest.mark.parametrize(
    "bands",
    [
        band.make(NUMBER, NUMBER + 1, 0, len(NUMBER)),
        band.make(0, len(NUMBER), NUMBER, NUMBER + 1),
        band.make(0, len(NUMBER), 0, len(NUMBER), NUMBER, NUMBER),
    ],
    ids=["rows", "keys", "offsets"],
)
def test_bands_that_meet_on_two_axes_alone_are_not_compared(bands, monkeypatch):
    compared = []
    monkeypatch.setattr(
        band, "_hold_a_pair", lambda common: compared.append(len(common)) or np.zeros(len(common), dtype=bool)
    )
    assert band.overlap(bands) is None
    assert sum(compared) == 0


def test_overlap_names_the_first_pair():
    assert band.overlap(band.make([0, 4, 2], [2, 6, 5], 0, [3, 4, 5])) == (1, 2)
    assert band.overlap(np.empty((0, 6), dtype=np.int64)) is None


def test_make_broadcasts():
    expected = [[0, 3, 0, 3, -band.INF, 0], [3, 5, 3, 5, -band.INF, 0]]
    assert band.make([0, 3], [3, 5], [0, 3], [3, 5], hi=0).tolist() == expected


def test_infinity_may_be_written_in_three_ways():
    rows = [[[0, 4, 0, 6, -math.inf, 1]], [[0, 4, 0, 6, -band.INF, 1]], [[0, 4, 0, 6, -(1 << 60), 1]]]
    forms = [band.as_bands(row) for row in rows]
    assert forms[0].dtype == np.int64
    assert forms[0].tolist() == forms[1].tolist() == forms[2].tolist() == [[0, 4, 0, 5, -band.INF, 1]]


def test_no_bands():
    assert band.as_bands([]).shape == (0, 6)


@pytest.mark.parametrize("length", [1 << 19, 1 << 24])
def test_areas_of_long_masks_do_not_overflow(length):
    assert band.areas(band.make(0, length, 0, length)).sum() == length * length
    assert band.areas(band.make(0, length, 0, length, hi=0)).sum() == length * (length + 1) // 2
    assert band.areas(band.make(0, length, 0, length, -1, 1)).sum() == 3 * length - 2
