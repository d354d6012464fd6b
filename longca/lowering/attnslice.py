"""Attention slices: rectangles of four types, the form of flexible attention kernels (MagiAttention's FFA)."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from longca.masks.band import HI, INF, K0, K1, LO
from longca.masks.mask import Mask


class SliceType(IntEnum):
    """The visible pairs of a rectangle of lq × lk, with i and j counted from its corner."""

    FULL = 0
    CAUSAL = 1  # j <= i + lk - lq: the diagonal ends in the bottom right corner
    INVCAUSAL = 2  # j >= i: the diagonal starts in the top left corner
    BICAUSAL = 3  # both


@dataclass(frozen=True, eq=False)
class AttnSlices:
    """Disjoint slices."""

    q_ranges: np.ndarray  # int32 (n, 2), half-open
    k_ranges: np.ndarray  # int32 (n, 2), half-open
    types: np.ndarray  # int32 (n,) of SliceType


def attn_slices(mask: Mask, group: int = 0) -> AttnSlices:
    """Every band as at most three slices: rows whose end moves, rows where both ends or neither do, rows whose start moves."""
    b = mask.groups[group]
    q0, q1, k0, k1, lo, hi = b.T
    end_rests = np.where(hi >= INF, q0, np.clip(k1 - hi, q0, q1))  # from this row on, rows end in k1
    start_moves = np.where(lo <= -INF, q1, np.clip(k0 - lo, q0, q1))  # from this row on, row i starts in i + lo
    rows = np.stack([q0, np.minimum(end_rests, start_moves), np.maximum(end_rests, start_moves), q1], axis=1)
    top, bottom = rows[:, :-1].ravel(), rows[:, 1:].ravel()
    upper = np.stack([np.ones(len(b), bool), end_rests > start_moves, np.zeros(len(b), bool)], axis=1).ravel()
    lower = np.stack([np.zeros(len(b), bool), end_rests > start_moves, np.ones(len(b), bool)], axis=1).ravel()
    band = np.repeat(b, 3, axis=0)
    left = np.where(lower, top + band[:, LO], band[:, K0])
    right = np.where(upper, bottom + band[:, HI], band[:, K1])
    types = SliceType.CAUSAL * upper + SliceType.INVCAUSAL * lower
    kept = top < bottom
    return AttnSlices(np.stack([top, bottom], axis=1)[kept].astype(np.int32),
                      np.stack([left, right], axis=1)[kept].astype(np.int32), types[kept].astype(np.int32))
