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
from longca.ops.band.tables.heads import even_part, heads_per_item_of
from longca.ops.band.tables.tile_rows import TILE, TileRows

if TYPE_CHECKING:
    from longca.masks import Mask

# Of the measured masks: tokens, and the least mean numbers of queries that see a key and of keys that a query
# sees. Longer masks have data of other kernels only, which the predicted times do not fit. So have, beyond
# LONGEST_ODD, odd numbers of KV heads. Beyond LAST_IS_SLOWER the order from the last row, which has no
# predicted time, is the quickest one where the rule by sizes takes it. So it is in parts of masks, with other
# numbers of queries than of keys, beyond LAST_IS_SLOWER_PART, and where their keys are out of order, beyond
# LAST_IS_SLOWER_UNSORTED.
SHORTEST = 1024
LAST_IS_SLOWER = 24576
LAST_IS_SLOWER_PART = 32768
LAST_IS_SLOWER_UNSORTED = 10240
LONGEST = 65536
LONGEST_ODD = 10240
LEAST_SEEN = 500
# Items of one pass that start together. More than FEW_ITEMS only if they have at most so many rows of Q, dO
# and dQ: with more they were slower in most cases, and no prediction says when.
ITEMS_AT_ONCE = (1, 2, 4, 8, 16)
FEW_ITEMS = 4
ROWS_OF_MANY = 160_000


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
    longest = max(mask.seqlen_q, mask.seqlen_k)
    is_part = mask.seqlen_q != mask.seqlen_k
    is_predicted = head_dim == HEAD_DIM and has_predicted_times(mask, num_kv_heads)
    if not is_predicted or longest > (LAST_IS_SLOWER_UNSORTED if is_part else LAST_IS_SLOWER):
        by_sizes = BackwardWay(preferred_dq_order(mask, num_kv_heads))
        if not is_predicted:
            return by_sizes
        if by_sizes.order is AddOrder.FROM_LAST and not (
            is_part and longest <= LAST_IS_SLOWER_PART and _tiles_of(mask).is_in_order
        ):
            return by_sizes
    times = predicted_us(mask, num_q_heads, num_kv_heads)
    return min(times, key=times.__getitem__)


def is_one_pass(mask: Mask, num_q_heads: int, num_kv_heads: int, head_dim: int = HEAD_DIM) -> bool:
    """True if one kernel makes all gradients, in float32 sums; False for two kernels, which need none."""
    return chosen_way(mask, num_q_heads, num_kv_heads, head_dim).order is not None


def _tiles_of(mask: Mask) -> TileRows:
    (bands,) = mask.groups
    return TileRows.of(bands, mask.seqlen_q, mask.seqlen_k)


def has_predicted_times(mask: Mask, num_kv_heads: int) -> bool:
    """True if the mask is of the kind to which predicted times were fitted: of bands, one head group,
    SHORTEST to LONGEST tokens (odd heads: LONGEST_ODD), and long rows and columns."""
    if mask.grid is not None or mask.num_groups > 1:
        return False
    longest = max(mask.seqlen_q, mask.seqlen_k)
    most = LONGEST_ODD if num_kv_heads % 2 else LONGEST
    return SHORTEST <= longest <= most and mask.area >= LEAST_SEEN * longest


def predicted_us(mask: Mask, num_q_heads: int, num_kv_heads: int) -> dict[BackwardWay, float]:
    """Predicted microseconds of each way that may be the quickest, for a mask with `has_predicted_times`.

    Left out are the order from the last row, which is hardly ever the quickest up to LAST_IS_SLOWER tokens;
    one pass with more or fewer items at once than a number that is slower already, or where it would take
    longer than another way even if no item waited; and one pass where keys are out of order, as those of
    several ranks may be: its work tiles then wait for each other as no prediction says.
    """
    (bands,) = mask.groups
    tiles = _tiles_of(mask)
    ratio = num_q_heads // num_kv_heads
    heads_per_item = math.gcd(heads_per_item_of(mask, AddOrder.FROM_FIRST, num_q_heads, TILE), ratio)
    times = {BackwardWay(None): two_kernels_us(bands, tiles, num_q_heads, num_kv_heads)}
    if not tiles.is_in_order:
        return times
    ways = ways_of_one_pass(mask.seqlen_q, num_q_heads, num_kv_heads, heads_per_item)
    few = sum(math.prod(way) <= FEW_ITEMS for way in ways) - 1
    # more items wait less for each other, and miss the cache more often: from a few on ever more of them, and
    # ever fewer, as long as that gains
    for some in (ways[few:], ways[few - 1 :: -1] if few else []):
        last = times.get(BackwardWay(AddOrder.FROM_FIRST, *ways[few]), math.inf)
        for at_once in some:
            least = min(times.values())
            time = one_pass_us(tiles, num_q_heads, num_kv_heads, heads_per_item, at_once, below=least)
            if time is None or time >= last:
                break
            times[BackwardWay(AddOrder.FROM_FIRST, *at_once)] = last = time
    return times


def ways_of_one_pass(
    num_rows: int, num_q_heads: int, num_kv_heads: int, heads_per_item: int
) -> list[tuple[int, int]]:
    """(KV heads, items of each work tile and KV head) that may start together: up to so many of ITEMS_AT_ONCE
    in all, of as many KV heads as there are."""
    head_rounds = num_q_heads // num_kv_heads // heads_per_item
    ways = []
    for items in ITEMS_AT_ONCE:
        if items <= FEW_ITEMS or items * heads_per_item * num_rows <= ROWS_OF_MANY:
            kv_heads = even_part(num_kv_heads, items)
            ways.append((kv_heads, even_part(head_rounds, items // kv_heads)))
    return list(dict.fromkeys(ways))


def backward_us(mask: Mask, num_q_heads: int, num_kv_heads: int, head_dim: int = HEAD_DIM) -> float | None:
    """Predicted microseconds of all gradients on an H200, by the quickest way that has a predicted time. None
    for blocks, several head groups and other head dims."""
    if mask.grid is not None or mask.num_groups > 1 or head_dim != HEAD_DIM:
        return None
    if has_predicted_times(mask, num_kv_heads):
        return min(predicted_us(mask, num_q_heads, num_kv_heads).values())
    (bands,) = mask.groups
    return two_kernels_us(bands, _tiles_of(mask), num_q_heads, num_kv_heads)
