"""Every mask pattern, whatever the registry finds, keeps the contract."""

import numpy as np
import pytest

from longca.core.plugin import Registry
from longca.masks import Mask, band, build_mask

NAMES = Registry("mask").names()
SEQLEN = 2048  # a multiple of every pattern's default blocks


def build(name: str, **given: int) -> Mask:
    return build_mask(name, seqlen=SEQLEN, num_kv_heads=2, **given)


@pytest.mark.parametrize("name", NAMES)
def test_says_what_it_is(name):
    pattern = Registry("mask").load(name)
    assert pattern.label and pattern.definition and "\n" not in pattern.definition
    assert pattern.family in ("regular", "heterogeneous", "dynamic")
    assert pattern.resolve({}) == pattern.Params().model_dump(), "every parameter has a default"


@pytest.mark.parametrize("name", NAMES)
def test_bands_are_disjoint_and_inside(name):
    """The area, and so every rate, counts each pair as often as bands hold it."""
    mask = build(name)
    assert (mask.seqlen_q, mask.seqlen_k) == (SEQLEN, SEQLEN)
    for bands in mask.groups:
        assert bands.dtype == np.int64 and bands.shape[1] == 6
        assert (bands[:, [0, 2]] >= 0).all() and (bands[:, [1, 3]] <= SEQLEN).all()
        assert band.dense(bands, SEQLEN, SEQLEN).sum() == band.areas(bands).sum()


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_decides_and_nothing_else(name):
    pattern = Registry("mask").load(name)
    digests = [build(name, seed=seed).digest for seed in (0, 0, 1, 2)]
    assert digests[0] == digests[1]
    assert pattern.draws(pattern.Params()) == (len(set(digests)) > 1), (
        "`stochastic` says whether the seed changes the mask"
    )
