"""A sliding window, and global tokens at the start that see all tokens and are seen by all."""

from pydantic import Field

from longca.core import Frozen
from longca.masks import band
from longca.masks.contract import Draw, Pattern
from longca.masks.mask import Mask


class GlobalSlidingWindow(Pattern):
    label = "Global sliding window"
    family = "heterogeneous"
    number = 11
    definition = "i < num_global or j < num_global or |i − j| ≤ window"

    class Params(Frozen):
        num_global: int = Field(512, ge=0, lt=band.INF)
        """first tokens that see all and are seen by all"""
        window: int = Field(1024, ge=0, lt=band.INF)
        """keys visible on each side, beside the token's own"""
        paper_compat: bool = False
        """the triangles that the released code counted; both numbers are random, and given ones are
        ignored"""

    def draws(self, params: Params) -> bool:
        return params.paper_compat

    def check(self, seqlen: int, params: Params) -> None:
        if params.paper_compat and seqlen < 6:
            raise ValueError(
                "`paper_compat` draws its window from 1..S//3 - 1, which takes 6 tokens at least"
            )

    def build(self, draw: Draw, params: Params) -> Mask:
        """In the released code the global strips are bottom-right-aligned triangles and the number of global
        tokens is the window, drawn from U{1..S//3 − 1}; FlexAttention and FlashMask ran twice as many, in
        full strips. `paper_compat` is the counted mask: FLOPs and the Naive and SDPA masks follow it, and the
        others differ.
        """
        seqlen = draw.seqlen
        if params.paper_compat:
            size = int(draw.rng.integers(1, seqlen // 3 - 1, endpoint=True))
            return draw.mask(
                band.make(0, seqlen, 0, size, hi=size - seqlen),
                band.make(0, size, size, seqlen, hi=seqlen - size),
                band.make(size, seqlen, size, seqlen, -size, size),
                num_global=size,
                window=size,
            )
        first = min(params.num_global, seqlen)
        return draw.mask(
            band.make(0, first, 0, seqlen),
            band.make(first, seqlen, 0, first),
            band.make(first, seqlen, first, seqlen, -params.window, params.window),
        )
