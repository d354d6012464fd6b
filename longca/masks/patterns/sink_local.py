"""Attention sinks and a causal window: StreamingLLM."""

from pydantic import Field

from longca.core import Frozen
from longca.masks import band
from longca.masks.contract import Draw, Pattern
from longca.masks.mask import Mask


class SinkLocal(Pattern):
    label = "Sinks and local"
    family = "heterogeneous"
    definition = "j ≤ i and (j < num_sinks or i − j ≤ window)"

    class Params(Frozen):
        num_sinks: int = Field(4, ge=0, lt=band.INF)
        """first tokens, which all later ones see"""
        window: int = Field(1024, ge=0, lt=band.INF)
        """keys visible before the token's own"""

    def build(self, draw: Draw, params: Params) -> Mask:
        seqlen = draw.seqlen
        sinks = min(params.num_sinks, seqlen)
        return draw.mask(
            band.make(0, seqlen, 0, sinks, hi=0), band.make(sinks, seqlen, sinks, seqlen, -params.window, 0)
        )
