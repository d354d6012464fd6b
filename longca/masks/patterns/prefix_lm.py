"""Prefix language modelling: full attention to a prefix, causal after it."""

from longca.core import Frozen
from longca.masks import band
from longca.masks.contract import Draw, Pattern
from longca.masks.mask import Mask


class PrefixLm(Pattern):
    label = "Prefix LM"
    family = "heterogeneous"
    number = 9
    definition = "j ≤ i or j < prefix, prefix drawn from U{1..S}"
    stochastic = True

    class Params(Frozen):
        paper_compat: bool = False
        """one more key in the prefix, as in the released code's fused kernels"""

    def build(self, draw: Draw, params: Params) -> Mask:
        """The released code counts j < prefix, and its two fused kernels for this mask (FlexAttention,
        FlashMask) run j ≤ prefix. The first is the default here; `paper_compat` is the second, to which the
        published times belong.
        """
        prefix = int(draw.rng.integers(1, draw.seqlen, endpoint=True))
        seen = min(prefix + params.paper_compat, draw.seqlen)
        return draw.mask(
            band.make(0, draw.seqlen, 0, seen),
            band.make(seen, draw.seqlen, seen, draw.seqlen, hi=0),
            prefix=prefix,
        )
