"""A cache of the latest masks: forward and backward of one problem follow each other and share a mask."""

import time
from collections import OrderedDict

from longca.core.cell import Cell
from longca.masks.build import cell_mask, mask_name
from longca.masks.mask import Mask

KEPT = 2  # a block mask of 128K tokens and 64 head groups takes 268 MB


class LatestMasks:
    """Builds masks and keeps the last `KEPT` of them."""

    def __init__(self) -> None:
        self._masks: OrderedDict[str, tuple[Mask, float]] = OrderedDict()

    def get(self, cell: Cell) -> tuple[Mask, float]:
        """(mask of the cell, milliseconds that building it took, now or earlier)."""
        name = mask_name(cell)
        if name not in self._masks:
            start = time.perf_counter()
            mask = cell_mask(cell)
            self._masks[name] = mask, (time.perf_counter() - start) * 1e3
            if len(self._masks) > KEPT:
                self._masks.popitem(last=False)
        self._masks.move_to_end(name)
        return self._masks[name]
