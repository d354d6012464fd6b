"""A causal window, and the first tokens. Replace the bands in `build` with your own.

`longca/masks/contract.py` has every member.
"""

from typing import Any

from pydantic import Field

from longca.core import Frozen
from longca.masks import Draw, Mask, Pattern, band


class NewMask(Pattern):
    label = "New mask"  # stands in figures
    family = "heterogeneous"  # section of pages: regular, heterogeneous or dynamic
    definition = "0 ≤ i − j ≤ window, or j < sink and j ≤ i"  # when query i sees key j
    # uses_documents = True       # then draw.bounds has them: document n is tokens bounds[n]..bounds[n + 1]
    # stochastic = True           # then draw.rng is a generator that the cell's seed decides

    class Params(Frozen):
        """Parameters with their defaults; studies may override them."""

        window: int = Field(1024, ge=0)
        """keys before the query that it sees"""
        sink: int = Field(4, ge=1)
        """first keys, visible to every query that does not precede them"""

    def build(self, draw: Draw, params: Any) -> Mask:
        """Bands: query i of q0..q1 sees key j of k0..k1 where lo ≤ j − i ≤ hi; without lo and hi the whole
        rectangle.

        They must be disjoint: a pair in two bands would count twice, in the area and in every rate.
        """
        end = draw.seqlen
        sink = min(params.sink, draw.seqlen)
        first = band.make(0, end, 0, sink, hi=0)
        window = band.make(0, end, sink, end, lo=-params.window, hi=0)
        # pass random values, draw.mask(…, prefix=p), so that records keep them
        return draw.mask(first, window)
