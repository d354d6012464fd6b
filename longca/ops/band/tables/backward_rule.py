"""The rule that selects band attention's backward: one pass, with one of two orders of additions to dQ, or
two kernels.

It does not import torch, since predictions use it, too.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from longca.masks.band import HI, INF, K0, K1, LO, Q1, areas
from longca.ops.band.tables.tile_rows import TILE, tiles_of_bands

if TYPE_CHECKING:
    from longca.masks import Mask

Sizes = np.ndarray | float
# Found on one H200, 64:8 heads, under 303 masks of whole sequences and of ranks: docs/results/h200/band.md.
LAST_SEES = 0.9  # least share of keys that the last query must see for the order from the last row
# least mean numbers of queries that see a key, and of keys that a query sees
MEAN_QUERIES = 3000
MEAN_KEYS = 3500
# the same as `MEAN_QUERIES` and `MEAN_KEYS`, for the order from the first row
FIRST_QUERIES = 2900
FIRST_KEYS = 1500
WINDOW_QUERIES = 1800  # enough where all work tiles are of one length
# Found on one H100 with the first addends stored, 64:8 heads, whole sequences: docs/results/h100/band.md.
STAIR_QUERIES = 2000  # enough under a staircase
# Tokens with which all rows of the heads at work stay in the level-2 cache, from whichever row work tiles go:
# of four heads, and of the one that is at work under a staircase.
SHORT = 8192
SHORT_STAIRS = 32768
# for a staircase, least share of tiles with distinct first rows, and least visible share of these tiles
APART = 0.75
FILLED = 0.8
# With a number of KV heads that is no multiple of four, one pass wants work tiles with at least this share of
# the rows of the longest, in the mean: long ones hold up the others or come last, and few heads give little
# to do meanwhile. Checked on one H100 with 8:1, 16:2 and 24:3 heads from 16K tokens on
# (docs/results/h100/band.md). Shorter sequences and other numbers of heads were not measured.
KV_HEADS = 4
VISIBLE_SHARE = 0.4


class AddOrder(IntEnum):
    """The order in which work tiles add to shared columns."""

    ANY = 0
    FROM_LAST = 1  # the longest work tiles first, each from its last column to its first
    FROM_FIRST = 2  # work tiles of the last rows first, each from its first column to its last


TWO_KERNELS = -1  # instead of an order: dQ has a separate kernel


def preferred_dq_order(mask: Mask, num_kv_heads: int) -> AddOrder | None:
    """The order in which the fused backward kernel adds to dQ; None if a separate dQ kernel is faster."""
    if mask.grid is not None:
        return None
    order = int(
        orders_of_parts(mask, mask.area / mask.num_groups, mask.seqlen_q, mask.seqlen_k, num_kv_heads)
    )
    return None if order == TWO_KERNELS else AddOrder(order)


def orders_of_parts(
    mask: Mask, area: Sizes, num_queries: Sizes, num_keys: Sizes, num_kv_heads: int
) -> np.ndarray:
    """The `AddOrder` of each part of a band mask, or of the whole, or TWO_KERNELS; the shape is that of the
    sizes.

    One pass needs long work tiles, since each adds dK and dV to memory for each query head. If the last query
    sees nearly all keys, as under `causal`, all work tiles start at the last row, unless sequences are short.
    Otherwise tiles of the last keys come first, and each starts at its first row: under windows, documents
    and shared questions it reaches rows that earlier tiles have already finished. Under a staircase tiles
    never reach each other. Unless KV heads are a multiple of four, work tiles must also have similar lengths
    and, except under windows, be as long from the first row as from the last: fewer heads run at once, so
    tiles wait longer for each other.

    Args:
        area, num_queries, num_keys: of one head group. Where the last query of the whole mask sees nearly all
            keys, so does that of every part; parts of a window are windows. Parts of a staircase are taken
            for such, which one in eight is not.
    """
    sizes = (area, num_queries, num_keys, num_kv_heads)
    few = num_kv_heads % KV_HEADS != 0
    if _last_sees_nearly_all(mask):
        short = SHORT_STAIRS if is_staircase(mask) else SHORT
        order = np.where(np.maximum(num_queries, num_keys) <= short, AddOrder.FROM_FIRST, AddOrder.FROM_LAST)
        return np.where(_are_long(*sizes, MEAN_QUERIES, MEAN_KEYS), order, TWO_KERNELS)
    if is_window(mask):
        least = WINDOW_QUERIES, FIRST_KEYS
    elif few:
        least = MEAN_QUERIES, MEAN_KEYS
    else:
        least = STAIR_QUERIES if is_staircase(mask) else FIRST_QUERIES, FIRST_KEYS
    return np.where(
        _are_long(*sizes, *least, longest_work_tile(mask) if few else INF), AddOrder.FROM_FIRST, TWO_KERNELS
    )


def _are_long(
    area: Sizes,
    num_queries: Sizes,
    num_keys: Sizes,
    num_kv_heads: int,
    mean_queries: int,
    mean_keys: int,
    longest: int = INF,
) -> np.ndarray:
    """True if work tiles are long and numerous enough for one pass. All numbers refer to one head group.

    Args:
        mean_queries: that see a key, at least.
        mean_keys: that a query sees, at least.
        longest: rows of the longest work tile of the whole mask. No part has more than its queries.
    """
    are_long = (
        np.greater(area, 0)
        & np.greater_equal(area, np.multiply(mean_queries, num_keys))
        & np.greater_equal(area, np.multiply(mean_keys, num_queries))
    )
    if num_kv_heads % KV_HEADS:
        are_long &= np.greater_equal(
            area, VISIBLE_SHARE * np.multiply(np.minimum(num_queries, longest), num_keys)
        )
    return are_long


def _last_sees_nearly_all(mask: Mask) -> bool:
    """True if the last query that sees a key sees nearly all keys."""
    if mask.grid is not None:
        return False
    key = "keys of the last query"
    if key not in mask.kept:
        mask.kept[key] = sum(map(keys_of_last_query, mask.groups))
    return mask.kept[key] >= LAST_SEES * mask.num_groups * mask.seqlen_k


def is_window(mask: Mask) -> bool:
    """True if all queries see the same number of keys, except near the ends."""
    return mask.grid is None and all(
        len(bands) == 1 and bool((bands[:, LO] > -INF).all() and (bands[:, HI] < INF).all())
        for bands in mask.groups
    )


def is_staircase(mask: Mask) -> bool:
    """True if most work tiles of keys begin at distinct rows and see nearly all rows from there to their last
    one, as under `causal` and causal documents. If they start together, each stays behind its predecessor."""
    key = "is a staircase"
    if key not in mask.kept:
        mask.kept[key] = mask.grid is None and all(
            _is_staircase(bands, mask.seqlen_k) for bands in mask.groups
        )
    return mask.kept[key]


def _is_staircase(bands: np.ndarray, num_keys: int) -> bool:
    first, last = _rows_of_work_tiles(bands, num_keys)
    own = len(np.unique(first // TILE))
    return bool(own >= APART * len(first) > 0 and areas(bands).sum() >= FILLED * (last - first).sum() * TILE)


def longest_work_tile(mask: Mask) -> int:
    """The largest number of rows of a work tile of keys, from the first to the last row that sees any of its
    keys."""
    key = "rows of the longest work tile"
    if key not in mask.kept:
        rows = (_rows_of_work_tiles(bands, mask.seqlen_k) for bands in mask.groups)
        mask.kept[key] = max((int((last - first).max(initial=0)) for first, last in rows), default=0)
    return mask.kept[key]


def _rows_of_work_tiles(bands: np.ndarray, num_keys: int) -> tuple[np.ndarray, np.ndarray]:
    """The first row and the end of the last row of each visible work tile of keys."""
    tiles, _, begin, end = tiles_of_bands(bands, TILE)
    seen = begin < end
    first = np.full(-(-num_keys // TILE), INF)
    last = np.full(-(-num_keys // TILE), -INF)
    np.minimum.at(first, tiles[seen], begin[seen])
    np.maximum.at(last, tiles[seen], end[seen])
    used = first < INF
    return first[used], last[used]


def keys_of_last_query(bands: np.ndarray) -> int:
    """Number of keys that the last query sees, of those queries that see any."""
    last = bands[bands[:, Q1] == bands[:, Q1].max(initial=0)]
    query = last[:, Q1] - 1
    return int(
        np.maximum(
            np.minimum(last[:, K1], query + last[:, HI] + 1) - np.maximum(last[:, K0], query + last[:, LO]), 0
        ).sum()
    )
