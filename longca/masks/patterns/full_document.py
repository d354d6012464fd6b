"""Packed documents, each with full attention."""

from typing import Any

from longca.core import Frozen
from longca.masks import band
from longca.masks.contract import Draw, Pattern
from longca.masks.mask import Mask


class FullDocument(Pattern):
    label = "Full document"
    family = "regular"
    number = 3
    definition = "same document"
    uses_documents = True

    class Params(Frozen):
        paper_compat: bool = False
        """documents from the paper's own sampler"""

    def build(self, draw: Draw, params: Any) -> Mask:
        start = draw.bounds[:-1]
        end = draw.bounds[1:]
        return draw.mask(band.make(start, end, start, end))
