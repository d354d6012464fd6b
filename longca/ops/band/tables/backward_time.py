"""Predicted times of the ways to band attention's gradients on Hopper: amounts of work, and their costs.

A way is two kernels, or one pass from the first row with some KV heads at once. One pass is simulated item by
item; an item is a work tile of one query head, or of a few:

    begins     when a program is free, and so late that it stays DISTANCE behind the earlier work tiles that
               add to the same rows of dQ
    computes   after START, one step for each block of 64 rows
    ends       FINISH later, when it has added dK and dV, for which it waits until the query head before has
               added its own

An item reads and adds to rows of Q, dO and dQ that an earlier work tile used a while ago. They are still in
the level-2 cache if all programs used few others since: the farther an item stays behind, and the more heads
are at work, the more of its blocks are missed.

Only the last items are simulated; earlier ones wait and miss as much in the mean. The module does not import
torch.
"""

from __future__ import annotations

import math
from heapq import heapify, heapreplace

import numpy as np

from longca.masks.band import transpose
from longca.ops.band.tables.heads import (
    KV_HEADS_AT_ONCE,
    LATE,
    MIN_BLOCKS,
    RESIDENT_PROGRAMS,
    even_part,
    heads_that_fit,
    pack_size,
)
from longca.ops.band.tables.tile_rows import BLOCK, FAR, TILE, TileRows

HEAD_DIM = 128  # of the Hopper kernels
PROGRAMS = 132  # multiprocessors of an H100 and of an H200
# in blocks of one pass: chosen among fifteen settings, by what a choice by them loses
START = 2.0
FINISH = 3.0
DISTANCE = 1.5
# simulated at least: items of each program, and of all
WAVES = 4
ITEMS = 132
# Blocks that each program computes until a block's rows begin to be displaced from the level-2 cache, after
# 30 MB of Q, dO and dQ, and until they surely are, after 100 MB: chosen among twelve settings alike.
KEPT = 3.5
DISPLACED = 11.5
ROWS = 1e5
# Microseconds for one of each amount, fitted on `reports/h200/ways` (1K to 24K tokens, 12 to 17 masks;
# 64:8, 32:8, 16:2 and 64:64 heads, H200s) by `python -m benchmarks.band.way_costs`, which tells how well.
ONE_PASS = ("call", "q rows", "kv rows", "zeros", "partial blocks", "blocks", "missed blocks")
SIMULATED = slice(ONE_PASS.index("blocks"), None)  # the last two
ONE_PASS_US = (9.591, 26.65, 34.14, 11.72, 0.4588, 1.914, 0.7262)
TWO_KERNELS = ("call", "dkdv blocks", "dq blocks", "partial dkdv blocks", "partial dq blocks", "q rows")
TWO_KERNELS_US = (56.0, 1.292, 1.122, 0.1422, 0.4804, 6.167)


def one_pass_us(
    tiles: TileRows,
    num_q_heads: int,
    num_kv_heads: int,
    heads_per_item: int,
    at_once: tuple[int, int],
    below: float = math.inf,
) -> float | None:
    """Predicted microseconds of one pass from the first row; arguments as of `one_pass_amounts`.

    Args:
        below: None is returned, without a simulation, where it would take as long even if no item waited.
    """
    call = tiles, num_q_heads, num_kv_heads, heads_per_item, at_once
    amounts = _amounts_without_waits(*call)
    if amounts @ ONE_PASS_US >= below:
        return None
    amounts[SIMULATED] = _simulated(*call)
    return float(amounts @ ONE_PASS_US)


def two_kernels_us(bands: np.ndarray, tiles: TileRows, num_q_heads: int, num_kv_heads: int) -> float:
    """Predicted microseconds of two kernels; arguments as of `two_kernels_amounts`."""
    return float(two_kernels_amounts(bands, tiles, num_q_heads, num_kv_heads) @ TWO_KERNELS_US)


def one_pass_amounts(
    tiles: TileRows, num_q_heads: int, num_kv_heads: int, heads_per_item: int, at_once: tuple[int, int]
) -> np.ndarray:
    """The amounts of ONE_PASS, (7,): blocks are those of one multiprocessor, waits included; 10⁵ rows.

    Args:
        tiles: work tiles of TILE keys.
        at_once: (KV heads, items of each work tile and KV head) that start together.
    """
    call = tiles, num_q_heads, num_kv_heads, heads_per_item, at_once
    amounts = _amounts_without_waits(*call)
    amounts[SIMULATED] = _simulated(*call)
    return amounts


def _simulated(
    tiles: TileRows, num_q_heads: int, num_kv_heads: int, heads_per_item: int, at_once: tuple[int, int]
) -> tuple[float, float]:
    head_rounds = num_q_heads // num_kv_heads // heads_per_item
    return one_pass_blocks(tiles, num_kv_heads, head_rounds, heads_per_item, at_once)


def _amounts_without_waits(
    tiles: TileRows, num_q_heads: int, num_kv_heads: int, heads_per_item: int, at_once: tuple[int, int]
) -> np.ndarray:
    """The amounts of ONE_PASS if no item waited, for another one or for the last one, and none missed the
    cache: no more of any."""
    q_rows = num_q_heads * tiles.num_rows / ROWS
    kv_rows = num_kv_heads * tiles.num_tiles * TILE / ROWS
    blocks = float(tiles.blocks.sum()) * num_q_heads / PROGRAMS
    num_items = num_q_heads // heads_per_item * tiles.num_tiles
    return np.array(
        [
            1.0,
            q_rows,
            kv_rows,
            0.0 if tiles.stores_first else q_rows + 2 * kv_rows,
            tiles.num_partial(BLOCK) * num_q_heads / PROGRAMS,
            blocks + num_items * (START + FINISH) / PROGRAMS,
            0.0,
        ]
    )


def two_kernels_amounts(
    bands: np.ndarray, tiles: TileRows, num_q_heads: int, num_kv_heads: int
) -> np.ndarray:
    """The amounts of TWO_KERNELS, (6,): blocks are those of one multiprocessor, the tail wave included.

    Args:
        bands: (n, 6) of the head group.
        tiles: its work tiles of TILE keys.
    """
    num_keys = tiles.num_tiles * TILE
    ratio = num_q_heads // num_kv_heads
    # query heads of one KV head share the rows of a block, or of a row tile
    pack = pack_size(ratio, BLOCK)
    keys = tiles.blocks_of(BLOCK // pack)
    at_once = even_part(num_kv_heads, KV_HEADS_AT_ONCE)
    share = min(at_once + LATE * num_kv_heads, num_kv_heads) / RESIDENT_PROGRAMS
    longest = max(MIN_BLOCKS, int(share * keys.sum())) * (ratio // pack)
    dkdv = makespan(keys * (ratio // pack), num_kv_heads, at_once, longest)
    partial_dkdv = tiles.num_partial(BLOCK // pack) * (ratio // pack) * num_kv_heads / PROGRAMS

    # row tiles below a block see nearly the same blocks, so all of a block have those of the block
    pack = pack_size(ratio, TILE)
    size = max(TILE // pack, BLOCK)
    rows = TileRows.of(transpose(bands), num_keys, tiles.num_rows, size)
    tiles_of_block = size * pack // TILE
    queries = np.repeat(rows.blocks_of(BLOCK), tiles_of_block)
    at_once = heads_that_fit(num_kv_heads, 4 * HEAD_DIM * num_keys)
    share = (at_once + LATE * num_kv_heads) * ratio / pack / PROGRAMS
    packs = num_q_heads // pack
    dq = makespan(queries, packs, at_once * ratio // pack, max(MIN_BLOCKS, int(share * queries.sum())))
    partial_dq = rows.num_partial(BLOCK) * tiles_of_block * packs / PROGRAMS
    return np.array([1.0, dkdv, dq, partial_dkdv, partial_dq, num_q_heads * tiles.num_rows / ROWS])


def one_pass_blocks(
    tiles: TileRows, num_kv_heads: int, head_rounds: int, heads_per_item: int, at_once: tuple[int, int]
) -> tuple[float, float]:
    """(blocks that a multiprocessor computes in one pass from the first row, and for which it waits; blocks
    of these whose rows are no longer in the level-2 cache).

    Args:
        head_rounds: items of a work tile and KV head, of `heads_per_item` query heads each.
        at_once: KV heads whose work tiles start together, and items of each that do. KV heads proceed alike,
            so one of them is simulated on its share of the programs.
    """
    kv_heads, rounds = at_once
    num_tiles = tiles.num_tiles
    programs = max(PROGRAMS // kv_heads, 1)
    lengths = (tiles.blocks * heads_per_item + (START + FINISH)).tolist()
    num_sections = num_kv_heads // kv_heads * head_rounds // rounds
    num_tasks = num_sections * num_tiles  # of `rounds` items each
    wave = max(programs // rounds, 1)
    # of a block's rows, if those of all heads at work were used since
    used = kv_heads * rounds * heads_per_item * tiles.num_rows / (PROGRAMS * BLOCK)
    most = min(max((used - KEPT) / (DISPLACED - KEPT), 0.0), 1.0)
    # whole waves are left out, at the beginning; how far items stay behind settles over a head's work tiles
    least = max(ITEMS // rounds, num_tiles) if most else 0
    omitted = max((num_tasks // wave - max(WAVES, -(-least // wave))) * wave, 0)
    shared_rows = tiles.shared_rows if most else [()] * num_tiles
    work = list(zip(range(num_tiles), lengths, tiles.predecessors, shared_rows, strict=True))
    free = [0.0] * programs
    # when each work tile begins, and DISTANCE later
    follows = [[-1.0 * FAR] * num_tiles for _ in range(rounds)]
    ends = [0.0] * num_tiles
    missed = settled = 0.0
    begun, first = divmod(omitted, num_tiles)
    simulated = begun, first
    for section in range(begun, num_sections):
        if section * rounds % head_rounds == 0:
            ends = [0.0] * num_tiles
        if section == begun + 1 + wave // num_tiles:  # the first wave waits in another way
            missed, settled = 0.0, sum(free)
            simulated = section, 0
        for tile, length, predecessors, shared in work[first:]:
            for follow_of in follows:
                time = free[0]
                for other, distance in predecessors:
                    if follow_of[other] + distance > time:
                        time = follow_of[other] + distance
                for distance, blocks in shared:
                    behind = time - follow_of[tile - 1] - distance + DISTANCE
                    if behind > KEPT:
                        missed += blocks * min((behind - KEPT) / (DISPLACED - KEPT), most)
                follow_of[tile] = time + DISTANCE
                time += length
                if ends[tile] + FINISH > time:
                    time = ends[tile] + FINISH
                ends[tile] = time
                heapreplace(free, time)
        first = 0
    end = max(free)
    total = sum(lengths)
    done = (num_sections - simulated[0]) * total - sum(lengths[: simulated[1]])
    if omitted:
        earlier = begun * total + sum(lengths[: omitted % num_tiles])
        end += earlier * ((sum(free) - settled) / done) / programs
    if most:
        missed *= num_sections * total / done
        missed += most * tiles.returned_blocks * num_sections * rounds
    share = kv_heads / PROGRAMS
    return end * programs * share, missed * heads_per_item * share


def makespan(lengths: np.ndarray, heads: int, heads_at_once: int, longest: float) -> float:
    """Time, in blocks, until all items are done, each begun by the program that is free first.

    Args:
        lengths: blocks of each item of one head.
        heads: with as many items each.
        heads_at_once: whose items start together, the longest first.
        longest: longer items are split into equal parts.
    """
    parts = np.maximum(np.ceil(lengths / longest), 1).astype(np.int64)
    items = np.sort(np.repeat(np.ceil(lengths / parts) + START, parts))[::-1]
    num_items = len(items) * heads
    omitted = max((num_items // PROGRAMS - WAVES) * PROGRAMS, 0)
    number = np.arange(omitted, num_items) % max(len(items) * heads_at_once, 1)
    simulated = items[number // heads_at_once].tolist()
    free = [*simulated[:PROGRAMS], *[0.0] * (PROGRAMS - len(simulated))]
    heapify(free)
    for length in simulated[PROGRAMS:]:
        heapreplace(free, free[0] + length)
    return max(free) + (float(items.sum()) * heads - sum(simulated)) / PROGRAMS
