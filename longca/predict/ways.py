"""Kernel-specific algorithms: rules of single kernels that are not fitted to records.

    kernel        direction   rule
    band          bwd         one pass, whose work tiles add to dQ in one order or another, or two kernels: as its operator chooses
    fa2           fwd         items of work start in the order of the sequence; `torch_flash` is the same code
    band          both        items of work are divided that take longer than half a multiprocessor's share, but not in one pass; forward
                              its operator has a finer limit
    cudnn_graph   bwd         a window that looks ahead as well as back is computed over the whole square, and masked there

A kernel with several algorithms has a model for each (`KernelModel.way`). All other kernels have one unnamed
model.
"""  # noqa: E501

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from longca.ops.band import AddOrder, orders_of_parts

if TYPE_CHECKING:
    from longca.masks import Mask, Traits

TWO_KERNELS = "two kernels"
FROM_LAST = "one pass from the last row"
FROM_FIRST = "one pass from the first row"
BANDS = ("band", "band_atomic")
# of `RESIDENT_PROGRAMS` in longca/ops/band/plan.py: two for each multiprocessor
OWN = ("band",)
OWN_MOST = 0.5
# blocks of the grid: row tiles of queries, from the first to the last, then heads
IN_ORDER = ("fa2", "torch_flash")
DKDV_MATMULS = 4  # matmuls of the kernel for dK and dV
BOTH_MATMULS = 7  # of both kernels
# commits of records of earlier kernels of `band`
EARLIER_RECORDS = ("472f5e6", "7df73e2", "d3404dd", "8337dc1", "50cde0b", "ad40a9a")


def ran_earlier(kernel: str, git_sha: str) -> bool:
    """True if records of a kernel at a commit are of `band` before its present kernels."""
    return kernel in BANDS and git_sha.startswith(EARLIER_RECORDS)


def way_of(kernel: str, direction: str, mask: Mask, num_kv_heads: int) -> str:
    """The algorithm of a kernel for a call; "" for kernels with a single one."""
    if (kernel, direction) != ("band", "bwd"):
        return ""
    if mask.grid is not None:
        return TWO_KERNELS
    return str(
        ways_of_parts(mask, mask.area / mask.num_groups, mask.seqlen_q, mask.seqlen_k, num_kv_heads)[()]
    )


def ways_of_parts(
    mask: Mask,
    area: np.ndarray | float,
    num_queries: np.ndarray | float,
    num_keys: np.ndarray | float,
    num_kv_heads: int,
) -> np.ndarray:
    """The backward algorithm of `band` for each part of a mask, or for the whole; the shape is that of the
    numbers, which refer to one head group.

    If the last query of the whole mask sees nearly all keys, so does that of every part; parts of a window
    are windows.
    """
    orders = orders_of_parts(mask, area, num_queries, num_keys, num_kv_heads)
    return np.select(
        [orders == AddOrder.FROM_LAST, orders == AddOrder.FROM_FIRST], [FROM_LAST, FROM_FIRST], TWO_KERNELS
    )


def covers_all(kernel: str, direction: str, traits: Traits) -> bool:
    """True if a kernel computes all pairs of a call, including hidden ones."""
    window = traits.window
    return (
        (kernel, direction) == ("cudnn_graph", "bwd")
        and window is not None
        and window[0] >= 0
        and window[1] != 0
    )


@dataclass(frozen=True)
class Items:
    """The division of a call into work items for a kernel's programs."""

    by_keys: bool
    """True if an item has some keys and all queries that see them, False for some queries and all keys that
    they see"""
    all_heads: bool
    """True if an item covers all query heads of a KV head, False for the heads of one tile"""
    most: float = math.inf
    """largest item, as a fraction of a multiprocessor's share of the whole call; longer items are split"""
    share: float = 1.0
    """share of the whole call's time in the kernel with these items"""
    in_order: bool = False
    """True if items of a head start in the order of the sequence, False for the longest first"""


def items_of(kernel: str, direction: str, way: str) -> Items:
    """The items of a kernel. The default is that of FlashAttention: backward by keys and query heads."""
    own = kernel in OWN and way not in (FROM_LAST, FROM_FIRST)
    most = OWN_MOST if own else math.inf
    if direction == "fwd":
        return Items(by_keys=False, all_heads=False, most=most, in_order=kernel in IN_ORDER)
    return Items(by_keys=True, all_heads=own, most=most, share=DKDV_MATMULS / BOTH_MATMULS if own else 1.0)
