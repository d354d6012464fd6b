"""Varlen segments and block lists."""

import numpy as np
import pytest
import torch
from hypothesis import given

from longca.lowering.blocks import block_lists
from longca.lowering.varlen import varlen
from longca.masks import Mask
from tests.helpers.kernels.masks_for_tests import PATTERNS, grid_masks, pattern_mask, rasters, uniform_grid
from tests.helpers.support import examples

SEGMENTED = {
    "full",
    "causal",
    "full_document",
    "causal_document",
    "sliding_window",
    "causal_sliding_window",
    "chunked_local",
}


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


def painted(
    index: torch.Tensor, counts: torch.Tensor, owner_bounds: np.ndarray, other_bounds: np.ndarray
) -> np.ndarray:
    """Bool (G, rows of owners, columns of others) from one side's lists."""
    out = np.zeros((len(index), owner_bounds[0, -1], other_bounds[0, -1]), dtype=bool)
    for group, owner in np.ndindex(*counts.shape):
        used = index[group, owner, : counts[group, owner]].numpy()
        assert (np.diff(used) > 0).all()
        assert not index[group, owner, counts[group, owner] :].any()
        for other in used:
            out[
                group,
                slice(*owner_bounds[group, owner : owner + 2]),
                slice(*other_bounds[group, other : other + 2]),
            ] = True
    return out


def check_lists(mask: Mask) -> None:
    lists = block_lists(mask)
    grid = mask.grid
    assert {part.dtype for part in vars(lists).values()} == {torch.int32}
    by_query = painted(lists.q_to_k, lists.q_to_k_counts, grid.q_bounds, grid.k_bounds)
    by_key = painted(lists.k_to_q, lists.k_to_q_counts, grid.k_bounds, grid.q_bounds)
    assert np.array_equal(by_query, rasters(mask)) and np.array_equal(
        by_key.transpose(0, 2, 1), rasters(mask)
    )


@pytest.mark.parametrize("name", ["block_sparse_uniform", "block_sparse_variable"])
def test_block_patterns(name: str):
    check_lists(pattern_mask(name))


@examples(100)
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
