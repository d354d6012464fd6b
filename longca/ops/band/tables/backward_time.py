"""Predicted times of the ways to band attention's gradients on Hopper: amounts of work, and their costs.

A way is two kernels, or one pass from the first row with some KV heads at once. One pass is simulated item by
item; an item is a work tile of one query head, or of a few:

    begins     when a program is free, and so late that it stays DISTANCE behind the earlier work tiles that
               add to the same rows of dQ
    computes   after START, one step for each block of 64 rows
    ends       FINISH later, when it has added dK and dV, for which it waits until the query head before has
               added its own

Only the last WAVES items of each program are simulated; earlier ones wait as much in the mean. The module
does not import torch.
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
# in blocks of one pass: chosen among ten settings, by residuals of ways of one mask beside each other
START = 2.0
FINISH = 3.0
DISTANCE = 1.5
WAVES = 4
BYTES_OF_ROW = (2 + 2 + 4) * HEAD_DIM  # of Q, dO and the sums of dQ
CACHE = 50e6  # bytes of the level-2 cache
CACHED = 0.35  # share of it that one head's rows may take before they displace each other
ROWS = 1e5
# Microseconds for one of each amount, fitted on `reports/h200/ways` (13 lengths from 1K to 10K under 12
# masks, 5 from 12K to 24K under 17; 64:8, 32:8, 16:2 and 64:64 heads, H200s) by `python -m
# benchmarks.band.way_costs`, which tells how well.
ONE_PASS = ("call", "blocks", "q rows", "kv rows", "zeros", "partial blocks", "uncached blocks")
BLOCKS = ONE_PASS.index("blocks")
ONE_PASS_US = (11.84, 1.919, 24.18, 32.63, 11.69, 0.5121, 0.02251)
TWO_KERNELS = ("call", "dkdv blocks", "dq blocks", "partial dkdv blocks", "partial dq blocks", "q rows")
TWO_KERNELS_US = (57.98, 1.229, 1.197, 0.1226, 0.4894, 5.444)


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
    amounts[BLOCKS] = _waited_blocks(*call)
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
    amounts[BLOCKS] = _waited_blocks(*call)
    return amounts


def _waited_blocks(
    tiles: TileRows, num_q_heads: int, num_kv_heads: int, heads_per_item: int, at_once: tuple[int, int]
) -> float:
    head_rounds = num_q_heads // num_kv_heads // heads_per_item
    return one_pass_blocks(tiles, num_kv_heads, head_rounds, heads_per_item, at_once)


def _amounts_without_waits(
    tiles: TileRows, num_q_heads: int, num_kv_heads: int, heads_per_item: int, at_once: tuple[int, int]
) -> np.ndarray:
    """The amounts of ONE_PASS if no item waited, for another one or for the last one: no more of any."""
    q_rows = num_q_heads * tiles.num_rows / ROWS
    kv_rows = num_kv_heads * tiles.num_tiles * TILE / ROWS
    blocks = float(tiles.blocks.sum()) * num_q_heads / PROGRAMS
    num_items = num_q_heads // heads_per_item * tiles.num_tiles
    rows_of_heads = at_once[0] * at_once[1] * heads_per_item * tiles.num_rows
    return np.array(
        [
            1.0,
            blocks + num_items * (START + FINISH) / PROGRAMS,
            q_rows,
            kv_rows,
            0.0 if tiles.stores_first else q_rows + 2 * kv_rows,
            tiles.num_partial(BLOCK) * num_q_heads / PROGRAMS,
            blocks * max(rows_of_heads * BYTES_OF_ROW / CACHE - CACHED, 0.0),
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
) -> float:
    """Blocks that a multiprocessor computes in one pass from the first row, and for which it waits.

    Args:
        head_rounds: items of a work tile and KV head, of `heads_per_item` query heads each.
        at_once: KV heads whose work tiles start together, and items of each that do. KV heads proceed alike,
            so one of them is simulated on its share of the programs.
    """
    kv_heads, rounds = at_once
    num_tiles = tiles.num_tiles
    programs = max(PROGRAMS // kv_heads, 1)
    lengths = (tiles.blocks * heads_per_item + (START + FINISH)).tolist()
    work = list(zip(range(num_tiles), lengths, tiles.predecessors, strict=True))
    num_tasks = num_kv_heads // kv_heads * head_rounds * num_tiles // rounds  # of `rounds` items each
    wave = max(programs // rounds, 1)
    # whole waves are left out, at the beginning
    omitted = max((num_tasks // wave - WAVES) * wave, 0)
    free = [0.0] * programs
    # when each work tile begins, and DISTANCE later
    follows = [[-1.0 * FAR] * num_tiles for _ in range(rounds)]
    ends = [0.0] * num_tiles
    busy = done = 0.0
    begun, first = divmod(omitted, num_tiles)
    for section in range(begun, num_tasks // num_tiles):
        if section * rounds % head_rounds == 0:
            ends = [0.0] * num_tiles
        if section == begun + 1 + wave // num_tiles:  # the first wave waits in another way
            busy = done = 0.0
        for tile, length, predecessors in work[first:]:
            for follow_of in follows:
                begin = time = free[0]
                for other, blocks in predecessors:
                    if follow_of[other] + blocks > time:
                        time = follow_of[other] + blocks
                follow_of[tile] = time + DISTANCE
                time += length
                if ends[tile] + FINISH > time:
                    time = ends[tile] + FINISH
                ends[tile] = time
                busy += time - begin
                done += length
                heapreplace(free, time)
        first = 0
    end = max(free)
    if omitted:
        earlier = (begun * sum(lengths) + sum(lengths[: omitted % num_tiles])) * rounds
        end += earlier * (busy / done) / programs
    return end * programs * kv_heads / PROGRAMS


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
