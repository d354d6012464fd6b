"""The way to band attention's gradients that a plan takes: that of the least predicted time, where times of
such masks were measured, or else that of the rule by sizes.

It does not import torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from longca.ops.band.tables.backward_rule import AddOrder, preferred_dq_order
from longca.ops.band.tables.backward_time import HEAD_DIM, one_pass_us, two_kernels_us
from longca.ops.band.tables.heads import HEADS_AT_ONCE, heads_per_item_of
from longca.ops.band.tables.tile_rows import TILE, TileRows

if TYPE_CHECKING:
    from longca.masks import Mask

# Of the measured masks: tokens, and the least mean numbers of queries that see a key and of keys that a query
# sees. Longer masks have data of other kernels only, which the predicted times do not fit. So have, beyond
# LONGEST_PART, odd numbers of KV heads, and parts of masks, with other numbers of queries than of keys.
# Beyond LAST_IS_SLOWER the order from the last row, which has no predicted time, is the quickest one where
# the rule by sizes takes it.
SHORTEST = 1024
LAST_IS_SLOWER = 24576
LONGEST = 65536
LONGEST_PART = 10240
LEAST_SEEN = 500


@dataclass(frozen=True)
class BackwardWay:
    """One way to all gradients."""

    order: AddOrder | None
    """of one pass; None: two kernels"""
    kv_heads_at_once: int = 0
    """whose work tiles start together; 0: by the mask's form"""
    rounds_at_once: int = 0
    """items of each work tile and KV head that start together; 0: by the mask's form"""


def chosen_way(mask: Mask, num_q_heads: int, num_kv_heads: int, head_dim: int = HEAD_DIM) -> BackwardWay:
    """The deterministic way that a plan of Hopper kernels takes."""
    is_predicted = head_dim == HEAD_DIM and has_predicted_times(mask, num_kv_heads)
    if not is_predicted or mask.seqlen_q > LAST_IS_SLOWER:
        by_sizes = BackwardWay(preferred_dq_order(mask, num_kv_heads))
        if not is_predicted or keeps_last_row(mask.seqlen_q, by_sizes):
            return by_sizes
    times = predicted_us(mask, num_q_heads, num_kv_heads)
    return min(times, key=times.__getitem__)


def keeps_last_row(num_tokens: int, by_sizes: BackwardWay) -> bool:
    """True if a way of the rule by sizes is taken in spite of predicted times, which the order from the last
    row has not."""
    return num_tokens > LAST_IS_SLOWER and by_sizes.order is AddOrder.FROM_LAST


def has_predicted_times(mask: Mask, num_kv_heads: int) -> bool:
    """True if the mask is of the kind to which predicted times were fitted: of bands, one head group,
    SHORTEST to LONGEST tokens (parts and odd heads: LONGEST_PART), and long rows and columns."""
    if mask.grid is not None or mask.num_groups > 1:
        return False
    longest = max(mask.seqlen_q, mask.seqlen_k)
    most = LONGEST if mask.seqlen_q == mask.seqlen_k and num_kv_heads % 2 == 0 else LONGEST_PART
    return SHORTEST <= longest <= most and mask.area >= LEAST_SEEN * longest


def predicted_us(mask: Mask, num_q_heads: int, num_kv_heads: int) -> dict[BackwardWay, float]:
    """Predicted microseconds of each way that may be the quickest, for a mask with `has_predicted_times`.

    The order from the last row is left out: it is hardly ever the quickest up to LAST_IS_SLOWER tokens. So is
    a way that would take longer than another one even if no item waited.
    """
    (bands,) = mask.groups
    tiles = TileRows.of(bands, mask.seqlen_q, mask.seqlen_k)
    ratio = num_q_heads // num_kv_heads
    heads_per_item = math.gcd(heads_per_item_of(mask, AddOrder.FROM_FIRST, num_q_heads, TILE), ratio)
    times = {BackwardWay(None): two_kernels_us(bands, tiles, num_q_heads, num_kv_heads)}
    for at_once in ways_of_one_pass(num_kv_heads, ratio // heads_per_item):
        least = min(times.values())
        time = one_pass_us(tiles, num_q_heads, num_kv_heads, heads_per_item, at_once, below=least)
        if time is not None:
            times[BackwardWay(AddOrder.FROM_FIRST, *at_once)] = time
    return times


def ways_of_one_pass(num_kv_heads: int, head_rounds: int) -> list[tuple[int, int]]:
    """(KV heads, items of each work tile and KV head) that may start together: up to four KV heads, and,
    where there are fewer, also two items of each.

    Args:
        head_rounds: items of a work tile and KV head.
    """
    heads = [number for number in range(HEADS_AT_ONCE, 0, -1) if num_kv_heads % number == 0]
    ways = [(number, 1) for number in heads]
    if heads[0] < HEADS_AT_ONCE and head_rounds % 2 == 0:
        ways.append((heads[0], 2))
    return ways
