"""Varlen segments and block lists."""

import numpy as np
import pytest
from hypothesis import given, settings

from longca.lowering.blocks import BlockLists, block_lists
from longca.lowering.varlen import varlen
from longca.masks import Mask
from tests.kernels.masks_for_tests import PATTERNS, grid_masks, pattern_mask, rasters, uniform_grid

SEGMENTED = {"full", "causal", "full_document", "causal_document", "sliding_window", "causal_sliding_window"}


@pytest.mark.parametrize("name", PATTERNS)
def test_varlen(name: str):
    mask = pattern_mask(name)
    if name not in SEGMENTED:
        with pytest.raises(ValueError, match="segments"):
            varlen(mask)
        return
    lowered = varlen(mask)
    assert lowered.cu_seqlens.dtype == np.int32
    assert lowered.max_seqlen == max(np.diff(lowered.cu_seqlens))
    left, right = (np.inf if bound < 0 else bound for bound in lowered.window)
    token = np.arange(mask.seqlen_q)
    segment = np.searchsorted(lowered.cu_seqlens, token, side="right")
    offset = token - token[:, None]
    assert np.array_equal((segment[:, None] == segment) & (offset >= -left) & (offset <= right), mask.dense())


def painted(lists: BlockLists, transpose: bool) -> np.ndarray:
    """Bool (G, Sq, Sk) from one side's lists."""
    index, counts = (lists.k_to_q, lists.k_to_q_counts) if transpose else (lists.q_to_k, lists.q_to_k_counts)
    q_ends, k_ends = (np.pad(np.cumsum(sizes, axis=1), ((0, 0), (1, 0))) for sizes in (lists.q_sizes, lists.k_sizes))
    out = np.zeros((len(index), q_ends[0, -1], k_ends[0, -1]), dtype=bool)
    for group, owner in np.ndindex(counts.shape):
        used = index[group, owner, :counts[group, owner]]
        assert (np.diff(used) > 0).all()
        assert not index[group, owner, counts[group, owner]:].any()
        for other in used:
            m, n = (other, owner) if transpose else (owner, other)
            out[group, q_ends[group, m]:q_ends[group, m + 1], k_ends[group, n]:k_ends[group, n + 1]] = True
    return out


def check_lists(mask: Mask) -> None:
    lists = block_lists(mask)
    assert {part.dtype for part in vars(lists).values()} == {np.dtype(np.int32)}
    assert np.array_equal(painted(lists, transpose=False), rasters(mask))
    assert np.array_equal(painted(lists, transpose=True), rasters(mask))


@pytest.mark.parametrize("name", ["block_sparse_uniform", "block_sparse_variable"])
def test_block_patterns(name: str):
    check_lists(pattern_mask(name))


@settings(max_examples=100, deadline=None)
@given(mask=grid_masks())
def test_any_blocks(mask: Mask):
    check_lists(mask)


def test_widths_are_the_longest_lists():
    mask = uniform_grid(64, 8, 16, groups=3, seed=0)
    lists = block_lists(mask)
    assert lists.q_to_k.shape == (3, 8, lists.q_to_k_counts.max())
    assert lists.k_to_q.shape == (3, 4, lists.k_to_q_counts.max())


def test_bands_have_no_blocks():
    with pytest.raises(ValueError, match="blocks"):
        block_lists(pattern_mask("causal"))
