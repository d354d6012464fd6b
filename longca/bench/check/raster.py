"""Dense rows of a mask for the oracle, computed from its bands or its block grid. No kernel shares this code."""

from __future__ import annotations

import numpy as np
import torch

from longca.masks import band
from longca.masks.mask import Mask


class DenseMaskRows:
    """The mask of one head group as dense rows, a range of rows at a time."""

    def __init__(self, mask: Mask, group: int, device: torch.device) -> None:
        self._seqlen_k, self._device = mask.seqlen_k, device
        self._grid: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
        if mask.grid is None:
            self._bands = mask.groups[group]
            return
        visible, q_bounds, k_bounds = (torch.from_numpy(part).to(device) for part in mask.grid.solid(group))
        row_of, col_of = (torch.bucketize(torch.arange(int(bounds[-1]), device=device), bounds[1:], right=True)
                          for bounds in (q_bounds, k_bounds))
        self._grid = visible, row_of, col_of

    def rows(self, start: int, end: int) -> torch.Tensor:
        """Visible pairs of rows [start, end): bool (end - start, Sk)."""
        if self._grid is not None:
            visible, row_of, col_of = self._grid
            return visible[row_of[start:end]][:, col_of]
        return self._banded_rows(start, end)

    def most_keys(self, start: int, end: int) -> int:
        """An upper bound on the number of keys that rows [start, end) see together."""
        if self._grid is not None:
            return self._seqlen_k
        part = band.cut(self._bands, (start, end), (0, self._seqlen_k))
        return min(int((part[:, band.K1] - part[:, band.K0]).sum()), self._seqlen_k)

    def _banded_rows(self, start: int, end: int) -> torch.Tensor:
        """Rows of a mask of bands.

        In each row a band has one range of keys. A +1 at its start and a −1 at its end are summed along the row. Bands are disjoint, so
        no two ranges of a row have the same start or the same end.
        """
        near = self._bands[(self._bands[:, band.Q0] < end) & (self._bands[:, band.Q1] > start)]  # documents can be thousands
        part = band.cut(near, (start, end), (0, self._seqlen_k))
        row = np.arange(start, end)[:, None]
        key_start = np.maximum(part[:, band.K0], row + part[:, band.LO])
        key_end = np.minimum(part[:, band.K1], row + part[:, band.HI] + 1)
        rows, index = np.nonzero((part[:, band.Q0] <= row) & (row < part[:, band.Q1]) & (key_start < key_end))
        step = torch.zeros(end - start, self._seqlen_k + 1, dtype=torch.int8, device=self._device)
        on_device = torch.from_numpy(np.stack([rows, key_start[rows, index], key_end[rows, index]])).to(self._device)
        step[on_device[0], on_device[1]] += 1
        step[on_device[0], on_device[2]] -= 1
        return step.cumsum(1, dtype=torch.int8)[:, :-1] > 0
