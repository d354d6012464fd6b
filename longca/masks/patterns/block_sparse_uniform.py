"""Dynamic sparse attention over square blocks of one size."""

from typing import Literal

import numpy as np
from pydantic import Field

from longca.core import Frozen
from longca.masks.choice import qk_blocks, random_blocks
from longca.masks.contract import Draw, Pattern
from longca.masks.grid import BlockGrid
from longca.masks.mask import Mask


class BlockSparseUniform(Pattern):
    label = "Block-sparse, uniform"
    family = "dynamic"
    number = 13
    definition = (
        "the pair of blocks was chosen: for each q-block the best ⌊density · N⌋ of N k-blocks, at least 1"
    )
    stochastic = True

    class Params(Frozen):
        block: int = Field(64, ge=1)
        """tokens of a block, queries and keys alike"""
        density: float = Field(0.5, gt=0, le=1)
        """share of visible blocks; the study calls it sparsity ratio"""
        scores: Literal["random", "qk"] = "random"
        """scores of blocks: uniform random, or dot products of block means of normal q and k"""

    def check(self, seqlen: int, params: Params) -> None:
        if seqlen % params.block:
            raise ValueError(f"the length must be a multiple of the block, {params.block}")

    def build(self, draw: Draw, params: Params) -> Mask:
        """Each KV head has its own blocks, which its query heads share."""
        num_blocks = draw.seqlen // params.block
        choose = random_blocks if params.scores == "random" else qk_blocks
        visible = np.empty((draw.num_kv_heads, num_blocks, num_blocks), dtype=bool)
        for head in range(draw.num_kv_heads):
            visible[head] = choose(draw.rng, num_blocks, num_blocks, params.density)
        bounds = np.tile(np.arange(num_blocks + 1) * params.block, (draw.num_kv_heads, 1))
        return Mask(draw.seqlen, draw.seqlen, grid=BlockGrid(visible, bounds, bounds))
