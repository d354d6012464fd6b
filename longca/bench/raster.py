"""A few rows of a mask as a dense raster, straight from its bands: the oracle's own way, shared with no kernel."""

from __future__ import annotations

import numpy as np
import torch

from longca.masks import band


def row_raster(bands: np.ndarray, first: int, last: int, seqlen_k: int, device: torch.device) -> torch.Tensor:
    """Visible pairs of rows first..last, bool (last - first, seqlen_k).

    Each row of each band is a run of keys: +1 where it begins and −1 behind it, summed along the row. Bands are disjoint, so
    that no two runs of a row begin, or end, at one place.
    """
    near = bands[(bands[:, band.Q0] < last) & (bands[:, band.Q1] > first)]  # a block mask can have a million
    part = band.cut(near, (first, last), (0, seqlen_k))
    row = np.arange(first, last)[:, None]
    begin = np.maximum(part[:, band.K0], row + part[:, band.LO])
    end = np.minimum(part[:, band.K1], row + part[:, band.HI] + 1)
    rows, index = np.nonzero((part[:, band.Q0] <= row) & (row < part[:, band.Q1]) & (begin < end))
    step = torch.zeros(last - first, seqlen_k + 1, dtype=torch.int8, device=device)
    on_device = torch.from_numpy(np.stack([rows, begin[rows, index], end[rows, index]])).to(device)
    step[on_device[0], on_device[1]] += 1
    step[on_device[0], on_device[2]] -= 1
    return step.cumsum(1, dtype=torch.int8)[:, :-1] > 0
