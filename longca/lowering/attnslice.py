"""Attention slices: rectangles of four types, the format of MagiAttention's FFA."""

import numpy as np

from longca.masks import AttnSlices, Mask, SliceType
from longca.masks.band import HI, INF, K0, K1, LO


def attn_slices(mask: Mask, group: int | None = None) -> AttnSlices:
    """The slices of all bands, at most three for each: rows where the end moves, rows where both bounds or
    none move, rows where the start moves.

    Raises:
        ValueError: head groups differ and `group` is missing, or there is no such group.
    """
    if group is not None and (
        not isinstance(group, (int, np.integer)) or group not in range(mask.num_groups)
    ):
        raise ValueError(
            f"there is no head group {group!r}: "
            + (
                "all heads are one group, 0"
                if mask.num_groups == 1
                else f"they are 0 to {mask.num_groups - 1}"
            )
        )
    if group is None and mask.num_groups > 1:
        raise ValueError(
            f"slices are those of one head group, and {mask.num_groups} differ: name one with `group`"
        )
    b = mask.groups[group or 0]
    q0, q1, k0, k1, lo, hi = b.T
    end_rests = np.where(hi >= INF, q0, np.clip(k1 - hi, q0, q1))  # from this row on, rows end at k1
    # from this row on, row i starts at i + lo
    start_moves = np.where(lo <= -INF, q1, np.clip(k0 - lo, q0, q1))
    rows = np.stack([q0, np.minimum(end_rests, start_moves), np.maximum(end_rests, start_moves), q1], axis=1)
    top = rows[:, :-1].ravel()
    bottom = rows[:, 1:].ravel()
    upper = np.stack([np.ones(len(b), bool), end_rests > start_moves, np.zeros(len(b), bool)], axis=1).ravel()
    lower = np.stack([np.zeros(len(b), bool), end_rests > start_moves, np.ones(len(b), bool)], axis=1).ravel()
    band = np.repeat(b, 3, axis=0)
    left = np.where(lower, top + band[:, LO], band[:, K0])
    right = np.where(upper, bottom + band[:, HI], band[:, K1])
    types = SliceType.CAUSAL * upper + SliceType.INVCAUSAL * lower
    kept = top < bottom
    return AttnSlices(
        np.stack([top, bottom], axis=1)[kept].astype(np.int32),
        np.stack([left, right], axis=1)[kept].astype(np.int32),
        types[kept].astype(np.int32),
    )
