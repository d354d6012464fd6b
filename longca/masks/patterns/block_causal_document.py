"""Packed documents of whole blocks (frames of a video, say), causal among blocks and full inside one."""

import numpy as np
from pydantic import Field

from longca.core import Frozen
from longca.masks import band
from longca.masks.contract import Draw, Pattern
from longca.masks.mask import Mask

MOST_BLOCKS = 8  # of a document; as in the study


class BlockCausalDocument(Pattern):
    label = "Block-causal document"
    family = "heterogeneous"
    number = 12
    definition = "same document and block(j) ≤ block(i), documents of U{1..8} blocks"
    stochastic = True

    class Params(Frozen):
        block: int = Field(1024, ge=1, lt=band.INF)
        """tokens of a block"""
        paper_compat: bool = False
        """only lengths of whole blocks, as in the released code"""

    def check(self, seqlen: int, params: Params) -> None:
        if params.paper_compat and seqlen % params.block:
            raise ValueError(f"`paper_compat` needs a multiple of the block, {params.block}")

    def build(self, draw: Draw, params: Params) -> Mask:
        """Document lengths are sampled here, not from a corpus, as in the study; the last document ends with
        the mask."""
        num_blocks = -(-draw.seqlen // params.block)
        ends = np.cumsum(draw.rng.integers(1, MOST_BLOCKS, size=num_blocks, endpoint=True)) * params.block
        ends = np.append(ends[ends < draw.seqlen], draw.seqlen)
        start = np.arange(num_blocks) * params.block
        end = np.minimum(start + params.block, draw.seqlen)
        first = np.concatenate([[0], ends])[np.searchsorted(ends, start, side="right")]
        return draw.mask(band.make(start, end, first, end), documents=np.diff(ends, prepend=0))
