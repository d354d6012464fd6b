"""Every pattern against its plain definition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longca.core.plugin import Registry
from longca.masks import band, build_mask
from tests.helpers.masks.definitions import DEFINITIONS, OF_THE_STUDY, block_raster, raster
from tests.helpers.masks.strategies import DYNAMIC, PATTERNS, WITH_DOCUMENTS, masks, quick


def _of_the_study():
    """The patterns with a number, in its order."""
    return sorted(
        (pattern for pattern in Registry("mask").load_all() if pattern.number),
        key=lambda pattern: pattern.number,
    )


def test_the_tests_know_every_pattern():
    assert sorted(PATTERNS) == Registry("mask").names()
    assert sorted((*OF_THE_STUDY, *DYNAMIC)) == sorted(pattern.name for pattern in _of_the_study())


def test_patterns_describe_themselves():
    patterns = _of_the_study()
    assert [pattern.number for pattern in patterns] == list(range(1, 15))
    assert len({pattern.label for pattern in patterns}) == 14
    families = {pattern.name: pattern.family for pattern in patterns}
    assert list(families.values()) == ["regular"] * 6 + ["heterogeneous"] * 6 + ["dynamic"] * 2
    assert tuple(name for name in families if name in WITH_DOCUMENTS) == WITH_DOCUMENTS
    assert {pattern.name for pattern in patterns if pattern.uses_documents} == set(WITH_DOCUMENTS)


@pytest.mark.parametrize("name", DEFINITIONS)
@quick
@given(data=st.data())
def test_static_mask_is_its_definition(name, data):
    mask = data.draw(masks(name))
    expected = raster(name, mask.seqlen_q, mask.params)
    assert np.array_equal(mask.dense(), expected)
    assert mask.area == expected.sum()
    assert band.overlap(mask.bands) is None


@pytest.mark.parametrize("name", DYNAMIC)
@quick
@given(data=st.data())
def test_dynamic_mask_is_its_chosen_blocks(name, data):
    mask = data.draw(masks(name, max_seqlen=48))
    expected = block_raster(mask.grid, mask.seqlen_q)
    assert np.array_equal(mask.dense(), expected[0] if mask.num_groups == 1 else expected)
    assert mask.area == expected.sum()
    assert all(band.overlap(bands) is None for bands in mask.groups)
    num_blocks = mask.grid.visible.shape[2]
    kept = max(1, int(num_blocks * mask.params["density"] + 1e-6))
    assert (mask.grid.visible.sum(axis=2) == kept).all()


@quick
@given(masks("block_causal_document"))
def test_block_causal_documents_are_one_to_eight_blocks(mask):
    documents = mask.params["documents"]
    block = mask.params["block"]
    assert documents.sum() == mask.seqlen_q
    assert (documents > 0).all() and (documents <= 8 * block).all()
    assert (documents[:-1] % block == 0).all()


@quick
@given(masks("prefix_lm_document"))
def test_prefixes_lie_within_their_documents(mask):
    documents = mask.params["documents"]
    prefix = mask.params["prefix"]
    assert prefix.shape == documents.shape
    if mask.params["paper_compat"]:
        assert len(set(prefix.tolist())) == 1
        documents = documents[0]
    assert ((prefix >= 1) & (prefix <= documents)).all()


@pytest.mark.parametrize("paper_compat", [False, True])
def test_prefix_is_drawn_from_the_whole_length(paper_compat):
    drawn = {
        build_mask("prefix_lm", seqlen=4, seed=seed, paper_compat=paper_compat).params["prefix"]
        for seed in range(60)
    }
    assert drawn == {1, 2, 3, 4}


def test_paper_window_is_drawn_and_is_the_number_of_global_tokens():
    drawn = [
        build_mask("global_sliding_window", seqlen=15, seed=seed, paper_compat=True).params
        for seed in range(60)
    ]
    assert {params["window"] for params in drawn} == {1, 2, 3, 4}
    assert all(params["window"] == params["num_global"] for params in drawn)


def test_only_drawn_masks_differ_by_seed():
    patterns = Registry("mask")
    for name in OF_THE_STUDY:
        if name in WITH_DOCUMENTS and name != "prefix_lm_document":
            continue
        given = {"documents": [40, 50]} if name in WITH_DOCUMENTS else {}
        if name == "block_causal_document":
            given["block"] = 2
        digests = {build_mask(name, seqlen=90, seed=seed, **given).digest for seed in range(4)}
        pattern = patterns.load(name)
        assert (len(digests) > 1) == pattern.draws(pattern.Params()), name
    compat = patterns.load("global_sliding_window")
    assert compat.draws(compat.Params(paper_compat=True))


@pytest.mark.parametrize("mean_block", [16, 128])
def test_variable_blocks_vary_but_never_below_a_quarter_of_the_mean(mean_block):
    grid = build_mask(
        "block_sparse_variable", seqlen=64 * mean_block, num_kv_heads=2, mean_block=mean_block
    ).grid
    for bounds in (grid.q_bounds, grid.k_bounds):
        sizes = np.diff(bounds, axis=1)
        assert sizes.shape == (2, 64)
        assert sizes.min() >= mean_block // 4
        assert sizes.max() > 2 * mean_block
    assert not np.array_equal(grid.q_bounds, grid.k_bounds)
    assert not np.array_equal(grid.q_bounds[0], grid.q_bounds[1])
    assert grid.block_size is None


def test_kv_heads_choose_for_themselves():
    visible = build_mask("block_sparse_uniform", seqlen=1024, num_kv_heads=3, block=64).grid.visible
    assert not np.array_equal(visible[0], visible[1]) and not np.array_equal(visible[1], visible[2])


def test_window_as_long_as_the_sequence():
    assert build_mask("sliding_window", seqlen=8, window=8, paper_compat=True).traits.full
    assert build_mask("sliding_window", seqlen=8, window=7, paper_compat=True).traits.causal
    assert build_mask("causal_sliding_window", seqlen=8, window=8).traits.causal
