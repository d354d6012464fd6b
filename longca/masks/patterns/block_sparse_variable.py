"""Dynamic sparse attention over blocks of various sizes."""

import numpy as np
from pydantic import Field

from longca.core import Frozen
from longca.masks.choice import random_blocks
from longca.masks.contract import Draw, Pattern
from longca.masks.grid import BlockGrid
from longca.masks.mask import Mask


class BlockSparseVariable(Pattern):
    label = "Block-sparse, variable"
    family = "dynamic"
    number = 14
    definition = "as block_sparse_uniform, with block boundaries drawn at random"
    stochastic = True

    class Params(Frozen):
        mean_block: int = Field(128, ge=1)
        """mean tokens of a block, queries and keys alike"""
        density: float = Field(0.5, gt=0, le=1)
        """share of visible blocks; the share of pairs equals it only on average, since block sizes differ"""

    def check(self, seqlen: int, params: Params) -> None:
        if seqlen < params.mean_block:
            raise ValueError(f"the length must be at least the mean block, {params.mean_block}")

    def build(self, draw: Draw, params: Params) -> Mask:
        """Each KV head has its own boundaries, for queries and for keys, and its own visible blocks."""
        num_blocks = draw.seqlen // params.mean_block
        visible = np.empty((draw.num_kv_heads, num_blocks, num_blocks), dtype=bool)
        q_bounds, k_bounds = np.empty((2, draw.num_kv_heads, num_blocks + 1), dtype=np.int64)
        for head in range(draw.num_kv_heads):
            q_bounds[head] = _bounds(draw.rng, draw.seqlen, num_blocks, params.mean_block)
            k_bounds[head] = _bounds(draw.rng, draw.seqlen, num_blocks, params.mean_block)
            visible[head] = random_blocks(draw.rng, num_blocks, num_blocks, params.density)
        return Mask(draw.seqlen, draw.seqlen, grid=BlockGrid(visible, q_bounds, k_bounds))


def _bounds(rng: np.random.Generator, seqlen: int, num_blocks: int, mean_block: int) -> np.ndarray:
    """Boundaries from 0 to seqlen: each block has a minimum size, and the rest is cut at sorted uniform
    points.

    The minimum is a quarter of the mean. The study's minimum was 128 for every mean, so a mean of 128 gave
    uniform blocks; with a share of the mean, the spread of sizes is the same for every mean.
    """
    least = max(1, mean_block // 4)
    cuts = rng.integers(0, seqlen - least * num_blocks, size=num_blocks - 1, endpoint=True)
    inner = np.sort(cuts) + least * np.arange(1, num_blocks)
    return np.concatenate([[0], inner, [seqlen]])
