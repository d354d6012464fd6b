"""Masks to lower: every pattern at ragged lengths, random disjoint bands, and grids with odd blocks."""

from itertools import pairwise, product
from typing import Any

import numpy as np
from hypothesis import strategies as st

from longca.core.plugin import Registry
from longca.masks import Mask, build_mask
from longca.masks.band import INF
from longca.masks.grid import BlockGrid

PATTERNS = Registry("mask").names()

# small parameters, so that a short mask has all that a long one has
SMALL = {
    "sliding_window": {"window": 9},
    "causal_sliding_window": {"window": 9},
    "global_sliding_window": {"num_global": 7, "window": 5},
    "prefix_tree": {"trees": 2, "branches": 3},
    "speculative_tree": {"levels": 5},
    "sink_local": {"num_sinks": 5, "window": 9},
    "chunked_local": {"chunk": 20},
    "longformer": {"num_global": 3, "window": 4, "dilation": 3},
    "hstu": {"num_context": 3, "num_candidates": 4},
    "block_causal_document": {"block": 16},
    "block_sparse_uniform": {"block": 16, "density": 0.4},
    "block_sparse_variable": {"mean_block": 12, "density": 0.4},
}
NEEDS_WHOLE_BLOCKS = ("block_causal_document", "block_sparse_uniform")
DOCUMENTS = np.array([5, 1, 30, 24, 17, 19])


NOTHING_VISIBLE = [
    Mask(*lengths, (np.empty((0, 6), dtype=np.int64),)) for lengths in ((20, 30), (0, 5), (5, 0))
]


def pattern_mask(name: str, seed: int = 0) -> Mask:
    """96 tokens, or 101 where the pattern takes any length; two head groups where they may differ."""
    documents = DOCUMENTS
    if name not in NEEDS_WHOLE_BLOCKS:
        documents = np.append(DOCUMENTS, 5)
    extra: dict[str, Any] = {"documents": documents} if Registry("mask").load(name).uses_documents else {}
    return build_mask(
        name, seqlen=int(documents.sum()), seed=seed, num_kv_heads=2, **extra, **SMALL.get(name, {})
    )


def rasters(mask: Mask) -> np.ndarray:
    """Bool (G, Sq, Sk), the reference of all these tests."""
    return mask.dense().reshape(mask.num_groups, mask.seqlen_q, mask.seqlen_k)


def _cuts(draw: st.DrawFn, length: int) -> list[int]:
    inner = draw(st.lists(st.integers(1, length), max_size=4, unique=True)) if length else []
    return sorted({0, length, *inner})


@st.composite
def band_masks(draw: st.DrawFn, max_groups: int = 1) -> Mask:
    """Below a diagonal and above it, a random band in each rectangle of a random partition of Sq × Sk.

    Since the two partitions differ, bands whose rectangles overlap meet at the diagonal, in one row or in
    many.
    """
    seqlen_q = draw(st.integers(1, 70))
    seqlen_k = draw(st.integers(1, 70))
    groups = []
    for _ in range(draw(st.integers(1, max_groups))):
        diagonal = draw(st.integers(-seqlen_q, seqlen_k))
        bands = []
        for lowest, highest in ((-INF, diagonal), (diagonal + 1, INF)):
            rows = _cuts(draw, seqlen_q)
            cols = _cuts(draw, seqlen_k)
            for (q0, q1), (k0, k1) in product(pairwise(rows), pairwise(cols)):
                lo, hi = (draw(st.just(bound) | st.integers(k0 - q1, k1 - q0)) for bound in (lowest, highest))
                bands.append((q0, q1, k0, k1, max(lo, lowest), min(hi, highest)))
        groups.append(np.array(bands, dtype=np.int64))
    return Mask(seqlen_q, seqlen_k, tuple(groups))


@st.composite
def complementary_masks(draw: st.DrawFn) -> Mask:
    """A rectangle in bands that touch: together they cover tiles that none of them covers alone."""
    seqlen_q = draw(st.integers(20, 70))
    seqlen_k = draw(st.integers(20, 70))
    offsets = sorted({draw(st.integers(-seqlen_q, seqlen_k)) for _ in range(draw(st.integers(1, 3)))})
    limits = [-INF, *offsets, INF]
    q0 = draw(st.integers(0, 10))
    k0 = draw(st.integers(0, 10))
    diagonals = [
        (q0, seqlen_q, k0, seqlen_k, low if low == -INF else low + 1, high) for low, high in pairwise(limits)
    ]
    rows = [(0, q0, 0, seqlen_k, -INF, INF)] if draw(st.booleans()) else []
    return Mask(seqlen_q, seqlen_k, (np.array(diagonals + rows, dtype=np.int64),))


@st.composite
def grid_masks(draw: st.DrawFn) -> Mask:
    """Blocks of any size, none included, in one to three head groups."""
    groups = draw(st.integers(1, 3))
    seqlen_q = draw(st.integers(1, 60))
    seqlen_k = draw(st.integers(1, 60))
    num_q = draw(st.integers(1, 6))
    num_k = draw(st.integers(1, 6))

    def bounds(length: int, blocks: int) -> np.ndarray:
        inner = [sorted(draw(st.integers(0, length)) for _ in range(blocks - 1)) for _ in range(groups)]
        return np.array([[0, *row, length] for row in inner], dtype=np.int64)

    num_blocks = groups * num_q * num_k
    visible = np.array(draw(st.lists(st.booleans(), min_size=num_blocks, max_size=num_blocks))).reshape(
        groups, num_q, num_k
    )
    return Mask(seqlen_q, seqlen_k, grid=BlockGrid(visible, bounds(seqlen_q, num_q), bounds(seqlen_k, num_k)))


def uniform_grid(seqlen: int, block_q: int, block_k: int, groups: int, seed: int) -> Mask:
    """Blocks of one size, the last ones shorter where the length does not divide."""
    counts = -(-seqlen // block_q), -(-seqlen // block_k)
    visible = np.random.default_rng(seed).random((groups, *counts)) < 0.6
    q_bounds, k_bounds = (
        np.minimum(np.arange(count + 1) * size, seqlen)[None].repeat(groups, 0)
        for count, size in zip(counts, (block_q, block_k), strict=True)
    )
    return Mask(seqlen, seqlen, grid=BlockGrid(visible, q_bounds, k_bounds))
