"""Attention to nearby tokens on both sides."""

from pydantic import Field

from longca.core import Frozen
from longca.masks import band
from longca.masks.contract import Draw, Pattern
from longca.masks.mask import Mask


class SlidingWindow(Pattern):
    label = "Sliding window"
    family = "regular"
    number = 5
    definition = "|i − j| ≤ window"

    class Params(Frozen):
        window: int = Field(1024, ge=0, lt=band.INF)
        """keys visible on each side, beside the token's own"""
        paper_compat: bool = False
        """the one-sided mask whose area the released code counted"""

    def build(self, draw: Draw, params: Params) -> Mask:
        """The released code counted its FLOPs on (and gave to Naive and SDPA) a one-sided window, while its
        other kernels ran both sides. `paper_compat` is the counted mask: the published figures follow from
        its area. As in the released code, a window over the whole length is full attention, not causal.
        """
        one_sided = params.paper_compat and params.window < draw.seqlen
        return draw.mask(
            band.make(0, draw.seqlen, 0, draw.seqlen, -params.window, 0 if one_sided else params.window)
        )
