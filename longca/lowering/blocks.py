"""Block index lists: what block-sparse kernels are given."""

from dataclasses import dataclass

import numpy as np

from longca.lowering.ranges import fill, turned
from longca.masks.mask import Mask


@dataclass(frozen=True, eq=False)
class BlockLists:
    """Visible blocks of each head group, ascending, unused slots 0.

    Shapes: G head groups, M q-blocks, N k-blocks; all int32.
    """

    q_to_k: np.ndarray  # (G, M, most of any q-block)
    q_to_k_counts: np.ndarray  # (G, M)
    k_to_q: np.ndarray  # (G, N, most of any k-block)
    k_to_q_counts: np.ndarray  # (G, N)
    q_sizes: np.ndarray  # (G, M) rows of each q-block
    k_sizes: np.ndarray  # (G, N) columns of each k-block


def block_lists(mask: Mask) -> BlockLists:
    """Raises ValueError for a mask that is not a block grid."""
    if mask.grid is None:
        raise ValueError("the mask is not made of blocks")
    grid = mask.grid
    q_to_k, q_to_k_counts = _lists(list(grid.visible))
    k_to_q, k_to_q_counts = _lists([turned(visible) for visible in grid.visible])
    q_sizes, k_sizes = (np.diff(bounds, axis=1).astype(np.int32) for bounds in (grid.q_bounds, grid.k_bounds))
    return BlockLists(q_to_k, q_to_k_counts, k_to_q, k_to_q_counts, q_sizes, k_sizes)


def block_of(bounds: np.ndarray) -> np.ndarray:
    """The block of each row (or column): int32 (bounds[-1],), from the (blocks + 1,) bounds of one group."""
    return np.repeat(np.arange(len(bounds) - 1, dtype=np.int32), np.diff(bounds))


def _lists(groups: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(index, counts) of the True entries in each row of each group."""
    counts = np.stack([visible.sum(axis=1, dtype=np.int32) for visible in groups])
    index = np.zeros((*counts.shape, max(int(counts.max(initial=0)), 1)), dtype=np.int32)
    for group, visible in enumerate(groups):  # one at a time: places in the flat matrix are 64-bit
        index[group] = fill(counts[group], np.flatnonzero(visible) % visible.shape[1], index.shape[-1])
    return index, counts
