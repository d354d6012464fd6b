"""Full attention."""

from typing import Any

from longca.masks import band
from longca.masks.contract import Draw, Pattern
from longca.masks.mask import Mask


class Full(Pattern):
    label = "Full"
    family = "regular"
    number = 1
    definition = "always"

    def build(self, draw: Draw, params: Any) -> Mask:
        return draw.mask(band.make(0, draw.seqlen, 0, draw.seqlen))
