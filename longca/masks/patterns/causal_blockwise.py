"""In-context learning: isolated demonstrations, then a test example that sees all of them."""

from typing import Any

from longca.core import Frozen
from longca.masks import band
from longca.masks.contract import Draw, Pattern
from longca.masks.mask import Mask


class CausalBlockwise(Pattern):
    label = "Causal blockwise"
    family = "heterogeneous"
    number = 8
    definition = "j ≤ i and (same document or i in the last one)"
    uses_documents = True

    class Params(Frozen):
        paper_compat: bool = False
        """documents from the paper's own sampler"""

    def build(self, draw: Draw, params: Any) -> Mask:
        start = draw.bounds[:-1]
        end = draw.bounds[1:]
        first = start.copy()
        first[-1] = 0
        return draw.mask(band.make(start, end, first, end, hi=0))
