"""Recommendation by packed users, each with context, a history, and candidates that do not see each other:
HSTU."""

import numpy as np
from pydantic import Field

from longca.core import Frozen
from longca.masks import band
from longca.masks.contract import Draw, Pattern
from longca.masks.mask import Mask


class Hstu(Pattern):
    label = "HSTU"
    family = "heterogeneous"
    definition = (
        "same document, and j is no candidate and (j ≤ i or i is context), or j = i; "
        "a document's first tokens are its context, its last ones the candidates"
    )
    uses_documents = True

    class Params(Frozen):
        num_context: int = Field(8, ge=0, lt=band.INF)
        """first tokens of a document, which see all of it but candidates"""
        num_candidates: int = Field(64, ge=0, lt=band.INF)
        """last tokens of a document, each of which sees all but the other candidates; they come before
        context where a document is short"""

    def build(self, draw: Draw, params: Params) -> Mask:
        start = draw.bounds[:-1]
        end = draw.bounds[1:]
        candidates = np.maximum(end - params.num_candidates, start)
        history = np.minimum(start + params.num_context, candidates)
        return draw.mask(
            band.make(start, history, start, candidates),
            band.make(history, candidates, start, candidates, hi=0),
            band.make(candidates, end, start, candidates),
            band.make(candidates, end, candidates, end, 0, 0),
        )
