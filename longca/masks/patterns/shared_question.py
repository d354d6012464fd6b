"""One question, several answers: the answers share the question and do not see each other."""

from typing import Any

from longca.core import Frozen
from longca.masks import band
from longca.masks.contract import Draw, Pattern
from longca.masks.mask import Mask


class SharedQuestion(Pattern):
    label = "Shared question"
    family = "heterogeneous"
    number = 7
    definition = "same document and j ≤ i, or j in document 0 and i in a later one"
    uses_documents = True

    class Params(Frozen):
        paper_compat: bool = False
        """documents from the paper's own sampler"""

    def build(self, draw: Draw, params: Any) -> Mask:
        start = draw.bounds[:-1]
        end = draw.bounds[1:]
        question = end[0]
        return draw.mask(
            band.make(start, end, start, end, hi=0), band.make(question, draw.seqlen, 0, question)
        )
