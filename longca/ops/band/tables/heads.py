"""Heads of band attention's kernels: how many share a tile, and whose work tiles start together.

It does not import torch, since predicted times depend on it, too.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from longca.ops.band.tables.backward_rule import AddOrder, is_staircase, is_window

if TYPE_CHECKING:
    from longca.masks import Mask

# concurrent programs of a large GPU, from which the allowed length of one of them follows
RESIDENT_PROGRAMS = 264
# allowed tail: a row tile may finish this fraction of a program's total time after the others, since a split
# costs about as much
LATE = 0.05
MIN_BLOCKS = 16  # work tiles of up to this many blocks are never split
# A row tile for each program of an H100 or H200, and all of about the same length: heads then take turns, and
# share the level-2 cache.
MANY_TILES = 132
NEARLY_ALL = 0.9
NARROW = 0.25  # share of the keys that a query sees; wider windows were not measured
ITEMS_OF_PROGRAM = 4  # at least, or some programs would have twice the work of others
HEADS_AT_ONCE = 4  # query heads, of all KV heads together
# at most, in a separate dK and dV kernel: all of 64:8 heads; with 64:64, 1 and 64 have worse worst cases
KV_HEADS_AT_ONCE = 16
# of data that concurrent programs share: keys and values, or queries and gradients of the output
L2_BYTES = 24 << 20


def heads_per_item_of(mask: Mask, order: AddOrder, num_q_heads: int, tile_m: int) -> int:
    """Query heads of one KV head that a work tile processes before it adds dK and dV: four under a narrow
    window, where tiles are short, or two if there are few items; otherwise one."""
    if order is not AddOrder.FROM_FIRST or not _is_narrow_window(mask):
        return 1
    num_items = num_q_heads * (mask.seqlen_k // tile_m)
    return next(
        (heads for heads in (HEADS_AT_ONCE, 2) if num_items >= heads * ITEMS_OF_PROGRAM * MANY_TILES), 1
    )


def heads_at_once(
    mask: Mask, order: AddOrder, num_kv_heads: int, head_rounds: int, heads_per_item: int, tile_m: int
) -> tuple[int, int]:
    """(KV heads whose work tiles start together, items of each such work tile that start together).

    With several query heads, work tiles of one head wait less for each other; with few, Q, dO and dQ stay in
    the level-2 cache, and with few KV heads the sums of dK and dV as well. Under a staircase work tiles
    hardly wait.

    Args:
        head_rounds: items of a work tile and KV head, of `heads_per_item` query heads each.
    """
    first = order is AddOrder.FROM_FIRST
    if order is AddOrder.ANY or (first and is_staircase(mask) and not _is_narrow_window(mask)):
        return 1, 1
    if mask.density >= NEARLY_ALL:
        return math.gcd(
            num_kv_heads, _kv_heads_under_even_tiles(mask.seqlen_q // tile_m, mask.seqlen_k // tile_m, first)
        ), 1
    rounds = math.gcd(2, head_rounds) if first and heads_per_item == 1 else 1
    return math.gcd(num_kv_heads, max(HEADS_AT_ONCE // (heads_per_item * rounds), 1)), rounds


def _kv_heads_under_even_tiles(num_row_tiles: int, num_tiles: int, first: bool) -> int:
    """KV heads that start together if all work tiles have the same length. The tiles follow each other
    through the rows of a head, so its rows limit the number of active tiles."""
    if num_tiles >= MANY_TILES:
        return next(
            (heads for heads in (1, 2) if heads * num_row_tiles >= NEARLY_ALL * MANY_TILES), HEADS_AT_ONCE
        )
    return (
        2
        if first and num_row_tiles >= num_tiles and 2 * num_tiles >= NEARLY_ALL * MANY_TILES
        else HEADS_AT_ONCE
    )


def _is_narrow_window(mask: Mask) -> bool:
    return is_window(mask) and mask.density <= NARROW


def heads_that_fit(num_heads: int, bytes_of_head: int) -> int:
    """The largest divisor of the number of heads whose shared reads fit into the level-2 cache; at least
    one."""
    return even_part(num_heads, L2_BYTES // max(bytes_of_head, 1))


def even_part(num_heads: int, most: int) -> int:
    """The largest divisor of the number of heads up to the given limit; at least one."""
    return max(
        heads for heads in range(1, num_heads + 1) if num_heads % heads == 0 and (heads == 1 or heads <= most)
    )


def pack_size(heads_per_kv_head: int, size: int, block: int | None = None) -> int:
    """Number of query heads of a KV head that share `size` rows or columns. With more heads a tile has fewer
    tokens, so fewer pairs at the mask's edges are hidden. Row tiles stay within a row of blocks: more tokens
    than those of a block are wasted, and fewer only increase the number of row tiles.
    """
    most = heads_per_kv_head & -heads_per_kv_head
    return max(min(most, size // (block or 8)), 1)
