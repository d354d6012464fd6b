"""Intervals, FlashMask columns and attention slices, each decoded element by element."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given

from longca.lowering.attnslice import attn_slices
from longca.lowering.dense import col_intervals, cudnn_row_intervals, row_intervals
from longca.lowering.flashmask import flashmask_columns
from longca.masks import Mask
from longca.masks.band import INF
from longca.masks.forms import FlashMaskColumns, SliceType
from tests.helpers.kernels import masks_for_tests
from tests.helpers.kernels.masks_for_tests import (
    NOTHING_VISIBLE,
    PATTERNS,
    pattern_mask,
    rasters,
    uniform_grid,
)
from tests.helpers.support import examples


def decoded_intervals(table: np.ndarray, num_cols: int) -> np.ndarray:
    assert table.dtype == np.int32
    out = np.zeros((len(table), num_cols), dtype=bool)
    for row, bounds in enumerate(table.tolist()):
        used = [(a, b) for a, b in zip(bounds[::2], bounds[1::2], strict=True) if a < b]
        assert all(
            a == b == num_cols
            for a, b in zip(bounds[2 * len(used) :: 2], bounds[2 * len(used) + 1 :: 2], strict=True)
        )
        assert all(end < start for (_, end), (start, _) in pairwise(used)), "sorted, never touching"
        for a, b in used:
            out[row, a:b] = True
    return out


def num_runs(raster: np.ndarray) -> int:
    return int(
        (np.diff(np.pad(raster, ((0, 0), (1, 0))).astype(int), axis=1) == 1).sum(axis=1).max(initial=0)
    )


def check_intervals(mask: Mask) -> None:
    for group, raster in enumerate(rasters(mask)):
        for table, wanted in ((row_intervals(mask, group), raster), (col_intervals(mask, group), raster.T)):
            assert np.array_equal(decoded_intervals(table, wanted.shape[1]), wanted)
            assert table.shape == (len(wanted), 2 * max(num_runs(wanted), 1))


def decoded_cudnn(bounds: np.ndarray, seqlen_k: int) -> np.ndarray:
    """[0, F0) U [F1, F2) U … of one head: (nfunc, Sq) → bool (Sq, Sk)."""
    key = np.arange(seqlen_k)
    seen = key < bounds[0][:, None]
    for start, end in zip(bounds[1::2], bounds[2::2], strict=True):
        seen |= (key >= start[:, None]) & (key < end[:, None])
    return seen


def check_cudnn(mask: Mask) -> None:
    bounds = cudnn_row_intervals(mask, num_q_heads=2 * mask.num_groups)
    assert bounds.dtype == np.int32
    assert bounds.shape[0] == (1 if mask.num_groups == 1 else 2 * mask.num_groups)
    for group, raster in enumerate(rasters(mask)):
        heads = bounds if mask.num_groups == 1 else bounds[2 * group : 2 * group + 2]
        for head in heads:
            assert np.array_equal(decoded_cudnn(head, mask.seqlen_k), raster)


def hidden_by(form: FlashMaskColumns, group: int, seqlen_q: int) -> np.ndarray:
    """Bool (Sq, Sk) of pairs that the columns hide, by the rules of FlashMask's documentation."""
    row = np.arange(seqlen_q)[:, None]
    key = np.arange(form.columns.shape[1])
    columns = form.columns[group].T
    if form.causal:
        until = columns[1] if len(columns) == 2 else seqlen_q
        return (row < key) | ((row >= columns[0]) & (row < until))
    if len(columns) == 2:
        return (row >= columns[0]) | (row < columns[1])
    return ((row >= columns[0]) & (row < columns[1])) | ((row >= columns[2]) & (row < columns[3]))


def check_flashmask(mask: Mask) -> FlashMaskColumns | None:
    """The form is right; without one, some key is indeed hidden from more than two runs of queries."""
    gaps = max(num_runs(~raster.T) for raster in rasters(mask))
    try:
        form = flashmask_columns(mask)
    except ValueError as error:
        assert f"{gaps} separate runs" in str(error)
        assert gaps > 2
        return None
    assert form.columns.dtype == np.int32
    for group, raster in enumerate(rasters(mask)):
        assert np.array_equal(~hidden_by(form, group, mask.seqlen_q), raster)
    return form


def check_slices(mask: Mask) -> None:
    for group, raster in enumerate(rasters(mask)):
        slices = attn_slices(mask, group)
        times_seen = np.zeros(raster.shape, dtype=int)
        for (q0, q1), (k0, k1), kind in zip(slices.q_ranges, slices.k_ranges, slices.types, strict=True):
            assert 0 <= q0 < q1 <= mask.seqlen_q
            assert 0 <= k0 < k1 <= mask.seqlen_k
            i = np.arange(q1 - q0)[:, None]
            j = np.arange(k1 - k0)
            below = j <= i + (k1 - k0) - (q1 - q0)
            above = j >= i
            visible = {
                SliceType.FULL: below | ~below,
                SliceType.CAUSAL: below,
                SliceType.INVCAUSAL: above,
                SliceType.BICAUSAL: below & above,
            }
            times_seen[q0:q1, k0:k1] += visible[SliceType(kind)]
        assert np.array_equal(times_seen, raster.astype(int)), "each visible pair lies in one slice"


@pytest.mark.parametrize("name", PATTERNS)
def test_patterns(name: str):
    for seed in (0, 1):
        mask = pattern_mask(name, seed)
        check_intervals(mask)
        check_cudnn(mask)
        check_flashmask(mask)
        check_slices(mask)


@examples(200)
@given(mask=masks_for_tests.band_masks(max_groups=2))
def test_any_bands(mask: Mask):
    check_intervals(mask)
    check_cudnn(mask)
    check_flashmask(mask)
    check_slices(mask)


@examples(60)
@given(mask=masks_for_tests.complementary_masks())
def test_touching_bands(mask: Mask):
    check_intervals(mask)
    check_cudnn(mask)
    check_flashmask(mask)


@examples(60)
@given(mask=masks_for_tests.grid_masks())
def test_any_blocks(mask: Mask):
    check_intervals(mask)
    check_cudnn(mask)
    check_flashmask(mask)
    check_slices(mask)


@pytest.mark.parametrize(
    "name, causal, num_columns",
    [
        ("full", False, 2),
        ("causal", True, 1),
        ("causal_document", True, 1),
        ("full_document", False, 2),
        ("sliding_window", False, 2),
        ("causal_sliding_window", True, 1),
        ("shared_question", True, 1),
        ("causal_blockwise", True, 2),
        ("prefix_lm", False, 2),
        ("prefix_lm_document", False, 2),
        ("global_sliding_window", False, 4),
        ("block_causal_document", False, 2),
    ],
)
def test_flashmask_uses_its_smallest_form(name: str, causal: bool, num_columns: int):
    form = check_flashmask(pattern_mask(name))
    assert form is not None
    assert (form.causal, form.columns.shape[2]) == (causal, num_columns)


@pytest.mark.parametrize(
    "bands",
    [
        [
            [0, 10, 0, 10, -INF, 0],
            [0, 6, 6, 8, -INF, INF],
        ],  # a moving end reaches a fixed start in the last row of one
        [
            [0, 20, 0, 30, 0, INF],
            [7, 12, 0, 7, -INF, INF],
        ],  # a moving start leaves a fixed end after the first row of one
    ],
)
def test_bands_that_touch_in_one_row(bands: list[list[int]]):
    check_intervals(Mask(20, 30, (np.array(bands),)))


def test_one_band_of_every_bound_is_three_slices():
    mask = Mask(40, 40, (np.array([[2, 38, 5, 30, -20, 20]]),))
    assert attn_slices(mask).types.tolist() == [SliceType.CAUSAL, SliceType.FULL, SliceType.INVCAUSAL]
    mask = Mask(40, 40, (np.array([[0, 40, 0, 40, -4, 4]]),))
    assert attn_slices(mask).types.tolist() == [SliceType.CAUSAL, SliceType.BICAUSAL, SliceType.INVCAUSAL]


def test_causal_document_for_cudnn():
    mask = Mask(5, 5, (np.array([[0, 2, 0, 2, -INF, 0], [2, 5, 2, 5, -INF, 0]]),))
    assert cudnn_row_intervals(mask).tolist() == [[[1, 2, 0, 0, 0], [5, 5, 2, 2, 2], [5, 5, 3, 4, 5]]]


def test_heads_must_divide():
    with pytest.raises(ValueError, match="3 query heads"):
        cudnn_row_intervals(uniform_grid(32, 16, 16, groups=2, seed=0), num_q_heads=3)


@pytest.mark.parametrize(
    "mask", [*NOTHING_VISIBLE, uniform_grid(4, 1, 1, groups=2, seed=0).stripe(0, 4, 5)], ids=repr
)
def test_nothing_visible(mask: Mask):
    check_intervals(mask)
    check_cudnn(mask)
    check_flashmask(mask)
    check_slices(mask)
