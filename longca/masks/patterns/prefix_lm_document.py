"""Packed documents, each with full attention to its own prefix and causal attention after it."""

import numpy as np

from longca.core import Frozen
from longca.masks import band
from longca.masks.contract import Draw, Pattern
from longca.masks.mask import Mask


class PrefixLmDocument(Pattern):
    label = "Prefix LM document"
    family = "heterogeneous"
    number = 10
    definition = (
        "same document and (j ≤ i or j − start < prefix), prefix drawn for each document from U{1..length}"
    )
    uses_documents = True
    stochastic = True

    class Params(Frozen):
        paper_compat: bool = False
        """one prefix for all documents with one more key in it, as in the released code's fused kernels;
        documents from the paper's own sampler"""

    def build(self, draw: Draw, params: Params) -> Mask:
        """In the released code one prefix, drawn from U{1..length of document 0}, serves all documents, so
        that most of them, shorter than it, are full. FlexAttention and FlashMask run j − start ≤ prefix there
        (see `prefix_lm`).
        """
        start = draw.bounds[:-1]
        end = draw.bounds[1:]
        if params.paper_compat:
            prefix = np.full(len(start), draw.rng.integers(1, end[0], endpoint=True))
        else:
            prefix = draw.rng.integers(1, end - start, endpoint=True)
        split = np.minimum(start + prefix + params.paper_compat, end)
        return draw.mask(
            band.make(start, end, start, split), band.make(split, end, split, end, hi=0), prefix=prefix
        )
