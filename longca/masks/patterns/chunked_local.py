"""Causal attention inside chunks of equal length: the local layers of Llama 4."""

import numpy as np
from pydantic import Field

from longca.core import Frozen
from longca.masks import band
from longca.masks.contract import Draw, Pattern
from longca.masks.mask import Mask


class ChunkedLocal(Pattern):
    label = "Chunked local"
    family = "regular"
    definition = "j ≤ i and ⌊j / chunk⌋ = ⌊i / chunk⌋"

    class Params(Frozen):
        chunk: int = Field(8192, ge=1, lt=band.INF)
        """tokens of a chunk; the last one may have fewer"""

    def build(self, draw: Draw, params: Params) -> Mask:
        start = np.arange(0, draw.seqlen, params.chunk)
        end = np.minimum(start + params.chunk, draw.seqlen)
        return draw.mask(band.make(start, end, start, end, hi=0))
