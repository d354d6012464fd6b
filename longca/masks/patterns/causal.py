"""Causal attention."""

from typing import Any

from longca.masks import band
from longca.masks.contract import Draw, Pattern
from longca.masks.mask import Mask


class Causal(Pattern):
    label = "Causal"
    family = "regular"
    number = 2
    definition = "j ≤ i"

    def build(self, draw: Draw, params: Any) -> Mask:
        return draw.mask(band.make(0, draw.seqlen, 0, draw.seqlen, hi=0))
