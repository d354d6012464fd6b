"""Pictures of masks: the shares of their cells are exact, and all that a reader asks for is there."""

import re
from itertools import pairwise

import numpy as np
import pytest

from longca.masks import Mask, build_mask
from longca.masks.picture import definition, shares
from tests.kernels.masks_for_tests import PATTERNS, pattern_mask, rasters


@pytest.mark.parametrize("name", PATTERNS)
def test_shares_are_those_of_the_raster(name: str):
    mask = pattern_mask(name)
    group = mask.num_groups - 1
    edges = np.linspace(0, mask.seqlen_q, 14).astype(int)
    raster = rasters(mask)[group].astype(float)
    wanted = [[raster[a:b, c:d].mean() for c, d in pairwise(edges)] for a, b in pairwise(edges)]
    np.testing.assert_allclose(shares(mask, 13, group), wanted, rtol=0, atol=1e-12)
    assert np.array_equal(shares(mask, 1000, group), raster), "one cell a pair"


def test_a_long_mask_is_quick_to_draw():
    mask = build_mask("causal_document", seqlen="128K", corpus="prolong64k")
    cells = shares(mask)
    assert cells.shape == (64, 64) and cells.mean() == pytest.approx(mask.density, rel=1e-9)


def test_html_has_definition_density_documents_parameters_and_drawing():
    page = build_mask("causal_document", seqlen=16, documents=[5, 3, 8])._repr_html_()
    asked = (
        "causal_document",
        "same document and j ≤ i",
        "0.2227 (57 pairs)",
        "3, longest 8 tokens",
        "<svg",
        "-∞",
    )
    assert [part for part in asked if part not in page] == []
    page = build_mask("sliding_window", seqlen="2K", window=100)._repr_html_()
    assert "window = 100" in page and "2,048 × 2,048" in page
    assert re.search(r'fill-opacity="0\.\d+"', page), "cells that are visible in part are paler"


def test_html_of_masks_without_a_pattern():
    page = Mask.from_windows(32, (3, 0), (-1, 0))._repr_html_()
    assert "mask of bands" in page and "2 bands in 2 head groups" in page and "head groups" in page
    page = Mask.from_block_mask(
        pattern_mask("block_sparse_uniform").to_flex(num_q_heads=2, block_size=16)
    )._repr_html_()
    assert "runs of blocks" in page


@pytest.mark.parametrize(
    ("mask", "rule"),
    [
        (Mask.from_documents([4, 4]), "same of 2 segments and j − i ≤ 0"),
        (Mask.from_windows(8, (3, 1)), "-3 ≤ j − i ≤ 1"),
        (Mask.from_windows(8, (3, -1)), "-3 ≤ j − i"),
        (Mask.from_windows(8, (-1, -1)), "always"),
        (Mask.from_bands(8, [[0, 4, 0, 8, 0, 2], [4, 8, 0, 4, -9, 9]]), "2 bands"),
    ],
)
def test_masks_without_a_pattern_have_a_rule_by_their_traits(mask: Mask, rule: str):
    assert definition(mask.name, mask.traits) == rule


def test_plot_shows_the_picture_in_tokens():
    import matplotlib
    from matplotlib import pyplot
    from matplotlib.figure import Figure

    matplotlib.use("Agg")
    mask = build_mask("causal", seqlen="8K")
    axes = mask.plot()
    assert axes.get_title() == "causal, density 0.500\nj ≤ i"
    image = axes.images[0]
    assert tuple(image.get_extent()) == (0, 8192, 8192, 0) and np.asarray(
        image.get_array()
    ).mean() == pytest.approx(mask.density)
    pyplot.close(axes.figure)
    several = Mask.from_windows(32, (3, 0), (-1, 0)).plot(Figure().subplots(), group=1)
    assert "head group 1" in several.get_title()
