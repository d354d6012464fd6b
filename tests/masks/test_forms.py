"""Masks from other libraries' forms and back: each pair as a round trip, and what is refused."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from torch.nn.attention.flex_attention import BlockMask

from longca.core.errors import UserError
from longca.core.plugin import Registry
from longca.masks import Mask, band, build_mask, tree_position_ids
from longca.masks.band import INF
from tests.helpers.kernels.masks_for_tests import band_masks, pattern_mask, rasters
from tests.helpers.support import examples

STATIC = [
    pattern.name for pattern in Registry("mask").load_all() if pattern.number and pattern.family != "dynamic"
]
SEGMENTS = {
    "full",
    "causal",
    "sliding_window",
    "causal_sliding_window",
    "full_document",
    "causal_document",
}  # forms of varlen calls


def same_pairs(mask: Mask, other: Mask) -> bool:
    return np.array_equal(rasters(mask), rasters(other))


def test_there_are_twelve_static_patterns():
    assert len(STATIC) == 12


@pytest.mark.parametrize("name", STATIC)
def test_cu_seqlens(name: str):
    mask = pattern_mask(name)
    if name not in SEGMENTS:
        with pytest.raises(UserError, match=rf"cu_seqlens cannot hold <Mask {name} .*not a row of segments"):
            mask.to_cu_seqlens()
        return
    form = mask.to_cu_seqlens()
    back = Mask.from_cu_seqlens(torch.from_numpy(form.cu_seqlens), window=form.window)
    assert back == mask
    assert form.max_seqlen == np.diff(form.cu_seqlens).max()


@pytest.mark.parametrize("name", STATIC)
def test_flashmask(name: str):
    mask = pattern_mask(name)
    form = mask.to_flashmask()
    assert form.startend_row_indices.shape == (1, 1, mask.seqlen_k, form.columns.shape[-1])
    back = Mask.from_flashmask(torch.from_numpy(form.startend_row_indices), causal=form.causal)
    assert same_pairs(back, mask)
    assert back == Mask.from_flashmask(form.columns[0], causal=form.causal)


@pytest.mark.parametrize("name", STATIC)
def test_flex(name: str):
    mask = pattern_mask(name)
    back = Mask.from_block_mask(mask.to_flex(block_size=16))
    assert same_pairs(back, mask)
    assert back == Mask.from_dense(mask.to_dense()) or back.grid is not None


@pytest.mark.parametrize("name", STATIC)
def test_slices(name: str):
    mask = pattern_mask(name)
    form = mask.to_slices()
    back = Mask.from_slices(torch.from_numpy(form.q_ranges), form.k_ranges, form.types, seqlen=mask.seqlen_q)
    assert same_pairs(back, mask)


@pytest.mark.parametrize("name", STATIC)
def test_dense_and_bands(name: str):
    mask = pattern_mask(name)
    assert same_pairs(Mask.from_dense(mask.to_dense()), mask)
    assert Mask.from_dense(mask.dense()) == Mask.from_dense(mask.to_dense())
    assert Mask.from_bands(mask.seqlen_q, mask.bands) == mask


def test_bounds_beyond_64_bits_are_no_bounds():
    assert Mask.from_windows(8, (2**70, 0)) == Mask.from_windows(8, (-1, 0))
    assert Mask.from_bands(8, [(0, 8, 0, 8, -(2**70), 0)]) == Mask.from_windows(8, (-1, 0))


@given(band_masks())
@examples(40)
def test_round_trips_of_any_bands(mask: Mask):
    canonical = Mask.from_dense(mask.dense())
    assert same_pairs(canonical, mask)
    form = mask.to_slices()
    assert same_pairs(
        Mask.from_slices(
            form.q_ranges, form.k_ranges, form.types, seqlen=mask.seqlen_q, seqlen_k=mask.seqlen_k
        ),
        mask,
    )
    assert same_pairs(Mask.from_block_mask(mask.to_flex(block_size=16)), mask)
    try:
        columns = mask.to_flashmask()
    except UserError as error:
        assert "FlashMask can say 2" in str(error)
    else:
        assert same_pairs(
            Mask.from_flashmask(columns.columns, causal=columns.causal, seqlen_q=mask.seqlen_q), mask
        )


def test_the_bands_of_a_raster_are_those_of_its_pattern():
    """A pattern here has the fewest bands, and not several that touch."""
    masks = [
        pattern_mask(name)
        for name in ("full", "causal", "sliding_window", "causal_sliding_window", "block_causal_document")
    ]
    for mask in [*masks, Mask.from_documents([5, 3, 8])]:
        assert Mask.from_dense(mask.dense()) == mask


def test_documents():
    mask = Mask.from_documents([5, 3, 8])
    assert mask == build_mask("causal_document", seqlen=16, documents=[5, 3, 8])
    assert mask.documents is not None and mask.documents.tolist() == [5, 3, 8]
    assert Mask.from_documents(torch.tensor([5, 3, 8]), causal=False) == build_mask(
        "full_document", seqlen=16, documents=[5, 3, 8]
    )
    assert Mask.from_cu_seqlens([0, 5, 8, 16], causal=True) == mask
    empty_one = Mask.from_cu_seqlens([0, 5, 5, 8, 16], causal=True)
    assert empty_one == mask and empty_one.documents is not None and len(empty_one.documents) == 3
    assert Mask.from_documents([16], window=(3, -1)) == Mask.from_windows(16, (3, 0))


def test_documents_of_a_part_are_not_those_of_the_whole():
    mask = Mask.from_documents([5, 3, 8])
    assert mask.crop((0, 8), (0, 8)).documents is None
    assert build_mask("causal", seqlen=16).documents is None


def test_windows():
    assert (
        Mask.from_windows("1K", (-1, 0))
        == build_mask("causal", seqlen="1K")
        == build_mask("causal", seqlen=1024)
    )
    several = Mask.from_windows(20, (3, 0), (-1, 0))
    assert several.num_groups == 2
    assert (rasters(several)[0].sum(1) == np.minimum(np.arange(20) + 1, 4)).all()


def test_head_groups_of_each_form():
    mask = Mask.from_windows(40, (3, 0), (-1, 0))
    form = mask.to_flashmask()
    assert Mask.from_flashmask(form.startend_row_indices, causal=form.causal) == mask
    assert Mask.from_block_mask(mask.to_flex(num_q_heads=8, block_size=16)) == mask
    assert Mask.from_dense(mask.to_dense()) == mask
    assert Mask.from_slices(*vars(mask.to_slices(1)).values(), seqlen=40) == Mask.from_windows(40, (-1, 0))
    for convert, message in (
        (mask.to_flex, "1 query heads cannot be shared"),
        (mask.to_slices, "name one with `group`"),
        (mask.to_cu_seqlens, "not a row of segments"),
    ):
        with pytest.raises(UserError, match=message):
            convert()


def test_a_block_mask_of_whole_blocks_is_a_grid():
    mask = pattern_mask("block_sparse_uniform")
    back = Mask.from_block_mask(mask.to_flex(num_q_heads=4, block_size=16))
    assert back.grid is not None and back == mask


def test_a_block_mask_that_others_made():
    documents = torch.tensor([0] * 30 + [1] * 50 + [2] * 21)

    def packed(b, h, q_idx, kv_idx):
        return (documents[q_idx] == documents[kv_idx]) & (q_idx >= kv_idx)

    blocks = torch.arange(4, dtype=torch.int32).expand(1, 1, 4, 4)  # all of them are tested pair by pair
    made = BlockMask.from_kv_blocks(
        torch.full((1, 1, 4), 4, dtype=torch.int32),
        blocks,
        BLOCK_SIZE=32,
        mask_mod=packed,
        seq_lengths=(101, 101),
    )
    assert Mask.from_block_mask(made) == Mask.from_documents([30, 50, 21])


def test_bands_with_infinity_and_their_text():
    mask = Mask.from_bands(8, [[0, 8, 0, 8, -math.inf, 0]])
    assert mask == build_mask("causal", seqlen=8)
    assert repr(mask.bands) == "bands([[0, 8, 0, 8, -∞, 0]])" and str(mask.bands) == "[[0 8 0 8 -∞ 0]]"
    assert mask.bands[0, 4] == -INF and isinstance(np.asarray(mask.bands).tolist()[0][4], int)


def test_equality_and_hash():
    first = build_mask("causal", seqlen=32)
    other = Mask.from_windows(32, (-1, 0))
    assert first == other and hash(first) == hash(other) and len({first, other}) == 1
    assert first != build_mask("causal", seqlen=33) and first != "causal"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: build_mask("causal", seqlen="8Q"), "Mask 'causal' has no such length: '8Q' is not a length"),
        (lambda: build_mask("causal", seqlen=1.5), "cannot have 1.5 tokens. Give a whole number"),  # type: ignore[arg-type]
        (lambda: Mask.from_documents([]), "at least 1"),
        (lambda: Mask.from_documents([3, 0]), "at least 1"),
        (
            lambda: Mask.from_documents([2**63 - 1, 2**63 - 1, 3]),
            "at most 2147483647 tokens, .* sum to 1.84e",
        ),
        (lambda: Mask.from_tree([-1, 0, 0], [2**63 - 1, 2**63 - 1, 3]), "lengths of nodes sum to 1.84e"),
        (lambda: tree_position_ids([-1, 0], [2**31, 2**31]), "lengths of nodes sum to 4.29e"),
        (lambda: Mask.from_block_map([2**62] * 4, [1], np.ones((4, 1), bool)), "sizes_q sum to 1.84e"),
        (lambda: Mask.from_document_ids(np.array([3, 2**64 - 1], np.uint64)), "below 2.63, and 1844.* among"),
        (
            lambda: Mask.from_tree(np.array([2**64 - 1, 0], np.uint64), [1, 1]),
            "parents must be whole numbers",
        ),
        (lambda: Mask.from_bands(8, [(0, 2**70, 0, 8, -(2**70), 2**70)]), "leaves the 8 × 8 pairs"),
        (lambda: Mask.from_documents([3.5]), "whole numbers, and they are float64"),
        (lambda: Mask.from_cu_seqlens([1, 4]), "begin with 0"),
        (lambda: Mask.from_cu_seqlens([0, 4, 2]), "never fall"),
        (lambda: Mask.from_windows(8), "give at least one window"),
        (lambda: Mask.from_windows(8, (-2, 0)), "each at least 0, or -1"),
        (
            lambda: Mask.from_windows(8, 3),
            r"a window is \(left, "
            r"right\), .* it is 3",
        ),  # type: ignore[arg-type]
        (lambda: Mask.from_windows("0", (1, 0)), "not a length"),
        (lambda: Mask.from_bands(8, [(0, 8, 0, 8)]), r"a band is six numbers .* the shape \(1, 4\)"),
        (
            lambda: Mask.from_block_mask(np.ones((8, 8))),
            "This BlockMask is no mask: it must be torch's BlockMask, and it is ndarray",
        ),  # type: ignore[arg-type]
        (lambda: Mask.from_windows("16M", (-1, 0)).to_dense(), "does not fit into memory"),
        (lambda: Mask.from_bands(8, [[0, 8, 0, 8, math.nan, 0]]), "whole or ±math.inf, and nan is neither"),
        (lambda: Mask.from_bands(8, [[0, 8, 0, 8, 0.5, 2]]), "whole or ±math.inf, and 0.5 is neither"),
        (lambda: Mask.from_bands(8, [[0, 9, 0, 8, -INF, INF]]), "leaves the 8 × 8 pairs"),
        (
            lambda: Mask.from_bands(8, [[0, 4, 0, 8, -INF, INF], [3, 8, 0, 8, -INF, INF]]),
            "disjoint, and .* are not",
        ),
        (lambda: Mask.from_flashmask(np.zeros((8, 4), int), causal=True), r"\(1, heads, keys, 1 or 2\)"),
        (
            lambda: Mask.from_slices([[0, 4]], [[0, 4]], [4], seqlen=8),
            "a type of slice is 0 for FULL, 1 for CAUSAL, .* and 4 is none of them",
        ),
        (
            lambda: Mask.from_slices([[0, 4]], [[0, 4]], ["causal"], seqlen=8),
            "0 for FULL, 1 for CAUSAL, .* whole numbers, and they are text",
        ),
        (
            lambda: Mask.from_slices([[0, 4, 8]], [[0, 4]], [1], seqlen=8),
            r"q_ranges must be \(n, 2\), a start and an end each",
        ),
        (
            lambda: Mask.from_slices(None, [[0, 4]], [1], seqlen=8),
            "q_ranges must be whole numbers, and they are NoneType",
        ),
        (lambda: Mask.from_documents([[3], [5, 2]]), "lists of different lengths"),
        (
            lambda: Mask.from_documents([3, 5], window=("a", "b")),
            r"each at least 0, or -1 for no bound; it is \('a', 'b'\)",
        ),
        (lambda: Mask.from_windows(8, [(3, 0), (2, 0)]), r"give from_windows\(8, \(3, 0\), \(2, 0\)\)"),  # type: ignore[arg-type]
        (
            lambda: Mask.from_windows(8, 3, 0),
            r"a window is a pair: "
            r"give from_windows\(8, \(3, 0\)\)",
        ),  # type: ignore[arg-type]
        (lambda: Mask.from_windows(8, (3.5, 0)), "whole numbers, each at least 0"),  # type: ignore[arg-type]
        (lambda: Mask.from_windows(8, (None, 0)), "whole numbers, each at least 0"),  # type: ignore[arg-type]
        (lambda: Mask.from_bands(8, 3), r"a band is six numbers .* the shape \(\)"),
        (lambda: Mask.from_bands(8, None), "a band is six numbers .* there are none in None"),
        (lambda: Mask.from_flashmask([[1]], causal=True, seqlen_q="x"), "'seqlen_q' is 'x'"),  # type: ignore[arg-type]
        (lambda: Mask.from_dense([[True], [True, False]]), "its rows are of different lengths"),
        (
            lambda: build_mask("causal", seqlen=8).to_slices(3),
            "there is no head group 3: all heads are one group, 0",
        ),
        (lambda: build_mask("causal", seqlen=8).to_slices("x"), "there is no head group 'x'"),  # type: ignore[arg-type]
        (
            lambda: Mask.from_windows(8, (1, 0), (2, 0)).to_slices(-1),
            "there is no head group -1: they are 0 to 1",
        ),
        (
            lambda: build_mask("causal", seqlen=8).to_dense("foo"),
            "'device' is 'foo': torch knows no such device. Give a device",
        ),
        (
            lambda: build_mask("causal", seqlen=8).to_dense("cuda:99"),
            "'device' is 'cuda:99': torch .* sees . GPUs",
        ),
        (lambda: build_mask("causal", seqlen=8).to_flex("foo"), "torch knows no such device"),
        (
            lambda: build_mask("causal", seqlen=8).to_flex(num_q_heads="x"),
            "'num_q_heads' is 'x'. Give a whole number",
        ),  # type: ignore[arg-type]
        (
            lambda: build_mask("causal", seqlen=8).to_flex(block_size=0),
            "'block_size' is 0. Give a whole number",
        ),
        (lambda: build_mask("causal", seqlen=8).to_flex(block_size=(128,)), "'block_size' is"),  # type: ignore[arg-type]
        (lambda: Mask.from_slices([[0, 4]] * 2, [[0, 4]] * 2, [0, 1], seqlen=8), "disjoint"),
        (lambda: Mask.from_dense(np.zeros((3, 3))), "must be bool"),
        (
            lambda: Mask.from_dense(np.zeros((0, 3, 3), bool)),
            "at least 1 head group, and this would have none",
        ),
        (lambda: Mask.from_flashmask(np.zeros((1, 0, 4, 1), int), causal=True), "at least 1 head group"),
        (lambda: Mask.from_dense(np.zeros((0, 3), bool)), "1 to 2147483647 queries"),
    ],
)
def test_what_is_no_mask_is_refused_in_one_line(make, message: str):
    with pytest.raises(UserError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


@given(band_masks())
@examples(40)
def test_overlaps_are_found_whatever_the_order(mask: Mask):
    bands = mask.groups[0]
    assert band.overlap(bands) is None
    if len(bands):
        assert band.overlap(np.concatenate([bands, bands[-1:]])) == (len(bands) - 1, len(bands))
