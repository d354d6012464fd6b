"""Ways of computing that single kernels have of their own: rules of these kernels, for which no record is fitted.

    kernel        direction   rule
    band          bwd         one pass, whose work tiles add to dQ in one order, or two kernels: as its operator chose for the records
    fa2           fwd         items of work start in the order of the sequence; `torch_flash` is the same code
    band          both        items of work are divided that take longer than half a multiprocessor's share, but not in one pass
    cudnn_graph   bwd         a window that looks ahead as well as back is computed over the whole square, and masked there

A kernel with several ways has a model for each (`KernelModel.way`). All other kernels have one, without a name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from longca.masks.band import HI, K0, K1, LO, Q1

if TYPE_CHECKING:
    from longca.masks.mask import Mask
    from longca.masks.traits import Traits

ONE_PASS, TWO_KERNELS = "one pass", "two kernels"
OWN, OWN_MOST = ("band",), 0.5  # of `RESIDENT_PROGRAMS` in longca/ops/band/plan.py: two for each multiprocessor
IN_ORDER = ("fa2", "torch_flash")  # blocks of the grid: row tiles of queries, from the first to the last, then heads
DKDV_MATMULS, BOTH_MATMULS = 4, 7  # of the kernel for dK and dV, and of it and that for dQ
WAYS = {("band", "bwd"): (ONE_PASS, TWO_KERNELS)}
# Those of longca/ops/band/tables/dq_order.py when the committed records were measured; it has chosen one pass more often since.
LAST_SEES, MEAN_QUERIES, MEAN_KEYS = 0.9, 3000, 4000
KV_HEADS, VISIBLE_SHARE = 4, 0.4


def way_of(kernel: str, direction: str, mask: Mask, num_kv_heads: int) -> str:
    """The way in which a kernel computes a call; "" for kernels that have one."""
    if (kernel, direction) not in WAYS:
        return ""
    one_pass = last_sees_nearly_all(mask) and are_long(mask.area / mask.num_groups, mask.seqlen_q, mask.seqlen_k, num_kv_heads)
    return ONE_PASS if one_pass else TWO_KERNELS


def are_long(area: np.ndarray | float, num_queries: np.ndarray | float, num_keys: np.ndarray | float, num_kv_heads: int,
             mean_queries: int = MEAN_QUERIES) -> np.ndarray:
    """Tells where `band`'s work tiles are long and many enough for one pass. All numbers are of one head group.

    Args:
        mean_queries: that see a key, at least.
    """
    found = (np.greater(area, 0) & np.greater_equal(area, np.multiply(mean_queries, num_keys))
             & np.greater_equal(area, np.multiply(MEAN_KEYS, num_queries)))
    if num_kv_heads % KV_HEADS:
        found &= np.greater_equal(area, VISIBLE_SHARE * np.multiply(num_queries, num_keys))
    return found


def last_sees_nearly_all(mask: Mask) -> bool:
    """Tells whether the last query that sees a key sees nearly all of them."""
    if mask.grid is not None:
        return False
    key = "keys of the last query"
    if key not in mask.kept:
        mask.kept[key] = sum(map(_keys_of_last, mask.groups))
    return mask.kept[key] >= LAST_SEES * mask.num_groups * mask.seqlen_k


def _keys_of_last(bands: np.ndarray) -> int:
    last = bands[bands[:, Q1] == bands[:, Q1].max(initial=0)]
    query = last[:, Q1] - 1
    return int(np.maximum(np.minimum(last[:, K1], query + last[:, HI] + 1) - np.maximum(last[:, K0], query + last[:, LO]), 0).sum())


def covers_all(kernel: str, direction: str, traits: Traits) -> bool:
    """Tells whether a kernel computes every pair of a call, also those that nobody sees."""
    window = traits.window
    return (kernel, direction) == ("cudnn_graph", "bwd") and window is not None and window[0] >= 0 and window[1] != 0


@dataclass(frozen=True)
class Items:
    """The division of a call into items of work, which a kernel's programs take one by one."""

    by_keys: bool
    """an item has some keys and all queries that see them; else some queries and all keys that they see"""
    all_heads: bool
    """of all query heads of a KV head; else as many as share a tile"""
    most: float = math.inf
    """of a multiprocessor's share of the whole call; items that take longer are divided"""
    share: float = 1.0
    """of the whole call's time, in the kernel with these items"""
    in_order: bool = False
    """items of a head come in the order of the sequence; else the longest come first"""


def items_of(kernel: str, direction: str, way: str) -> Items:
    """The items of a kernel. Of a kernel that is not known they are as in FlashAttention: backward by keys and query heads."""
    own = kernel in OWN and way != ONE_PASS
    most = OWN_MOST if own else math.inf
    if direction == "fwd":
        return Items(by_keys=False, all_heads=False, most=most, in_order=kernel in IN_ORDER)
    return Items(by_keys=True, all_heads=own, most=most, share=DKDV_MATMULS / BOTH_MATMULS if own else 1.0)
