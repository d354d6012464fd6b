"""Attention to the preceding tokens within a window."""

from pydantic import Field

from longca.core import Frozen
from longca.masks import band
from longca.masks.contract import Draw, Pattern
from longca.masks.mask import Mask


class CausalSlidingWindow(Pattern):
    label = "Causal sliding window"
    family = "regular"
    number = 6
    definition = "0 ≤ i − j ≤ window"

    class Params(Frozen):
        window: int = Field(1024, ge=0, lt=band.INF)
        """keys visible before the token's own"""

    def build(self, draw: Draw, params: Params) -> Mask:
        """There is no `paper_compat`: the released code counts and runs this mask. (One of its kernels gets
        an empty mask if the window is as long as the sequence; this is not reproduced.)
        """
        return draw.mask(band.make(0, draw.seqlen, 0, draw.seqlen, -params.window, 0))
