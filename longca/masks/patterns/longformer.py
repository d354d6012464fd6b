"""Global tokens and a window, which may be dilated: Longformer."""

import numpy as np
from pydantic import Field

from longca.core import Frozen
from longca.masks import band
from longca.masks.contract import Draw, Pattern
from longca.masks.mask import Mask

MOST_WINDOW = 1 << 16  # each offset of a dilated window is a band


class Longformer(Pattern):
    label = "Longformer"
    family = "heterogeneous"
    definition = (
        "i < num_global or j < num_global or (|i − j| ≤ window · dilation and dilation divides i − j)"
    )

    class Params(Frozen):
        num_global: int = Field(16, ge=0, lt=band.INF)
        """first tokens that see all and are seen by all"""
        window: int = Field(256, ge=0, le=MOST_WINDOW)
        """keys visible on each side, beside the token's own"""
        dilation: int = Field(1, ge=1, le=MOST_WINDOW)
        """distance between visible keys; from 2 on, each offset of the window is a band, and planning slow"""

    def build(self, draw: Draw, params: Params) -> Mask:
        seqlen = draw.seqlen
        dilation = params.dilation
        first = min(params.num_global, seqlen)
        if dilation == 1:
            low = high = np.array([params.window])
            low = -low
        else:
            reach = min(params.window, (seqlen - 1) // dilation)
            low = high = dilation * np.arange(-reach, reach + 1)
        return draw.mask(
            band.make(0, first, 0, seqlen),
            band.make(first, seqlen, 0, first),
            band.make(first, seqlen, first, seqlen, low, high),
        )
