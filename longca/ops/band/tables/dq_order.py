"""The order in which work tiles of keys add to dQ: whether to use it, and for which work tile each one has to wait.

Sums of floats depend on the order of their terms. With an order, the fused backward kernel gives the same bits in every run.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from longca.masks.band import HI, K0, K1, LO, Q1
from longca.masks.mask import Mask
from longca.ops.band.tables.ranges import expand, segments
from longca.ops.band.tables.schedule import FULL_START, PARTIAL_END, PARTIAL_START, TileSchedule

FAR = 1 << 32  # beyond any column
# Found on one H200, 64:8 heads, under 165 masks of whole sequences and of ranks: docs/results/h200/band.md.
LAST_SEES = 0.9  # share of the keys that the last query sees, at least
MEAN_QUERIES, MEAN_KEYS = 3000, 4000  # queries that see a key, and keys that a query sees, in the mean
# Work tiles of so many KV heads start together. With fewer KV heads, waiting was slow but under masks of which this share is visible.
KV_HEADS, VISIBLE_SHARE = 4, 0.4


def prefers_ordered_dq(mask: Mask, num_kv_heads: int) -> bool:
    """True where the fused backward kernel, with additions to dQ in one order, is quicker than a dQ kernel of its own.

    It is where work tiles are long and many, and the last query sees nearly all keys, as under `causal`. It is not where there are
    documents: all work tiles begin with a document's last rows then, and soon follow each other at a block's distance.
    """
    least = mask.num_groups * max(MEAN_QUERIES * mask.seqlen_k, MEAN_KEYS * mask.seqlen_q)
    if mask.grid is not None or mask.area == 0 or mask.area < least:
        return False
    if num_kv_heads % KV_HEADS and mask.area < VISIBLE_SHARE * mask.num_groups * mask.seqlen_q * mask.seqlen_k:
        return False
    return sum(map(keys_of_last_query, mask.groups)) >= LAST_SEES * mask.num_groups * mask.seqlen_k


def keys_of_last_query(bands: np.ndarray) -> int:
    """Number of keys that the last query sees, of those queries that see any."""
    last = bands[bands[:, Q1] == bands[:, Q1].max(initial=0)]
    query = last[:, Q1] - 1
    return int(np.maximum(np.minimum(last[:, K1], query + last[:, HI] + 1) - np.maximum(last[:, K0], query + last[:, LO]), 0).sum())


def with_waits(schedule: TileSchedule) -> TileSchedule:
    """The same with `waits` and `wait_ranges`, in the order of the work tiles of a group.

    O(work tiles · positions where one begins or ends).
    """
    waits, wait_ranges, num_waits, ranges = [], [], 0, schedule.block_ranges.long()
    number = torch.arange(schedule.work_tiles.shape[1] + 1, device=ranges.device)
    for work_tiles in schedule.work_tiles.long():
        tile, entries = _of_group(work_tiles, ranges, schedule.tile_n)
        bounds = torch.searchsorted(tile.contiguous(), number) + num_waits
        waits.append(entries)
        wait_ranges.append(torch.stack([bounds[:-1], bounds[1:]], 1))
        num_waits += len(entries)
    return replace(schedule, waits=torch.cat(waits).to(torch.int32), wait_ranges=torch.stack(wait_ranges).to(torch.int32))


def _of_group(work_tiles: Tensor, ranges: Tensor, tile_n: int) -> tuple[Tensor, Tensor]:
    """(work tile, (first column, work tile to wait for)) of each stretch of columns, from the right."""
    owner, start, end = _touched(work_tiles, ranges, tile_n)
    if len(owner) == 0:
        return owner, work_tiles.new_zeros(0, 2)
    positions, index = torch.unique(torch.stack([start, end]), return_inverse=True)
    depth = torch.zeros(len(work_tiles), len(positions), dtype=torch.int8, device=work_tiles.device)
    depth[owner, index[0]], depth[owner, index[1]] = 1, -1
    depth = torch.cumsum(depth.view(-1), 0, dtype=torch.int8).view(depth.shape)  # of all rows at once, since each ends at 0
    touched = depth[:, :-1].flip(1).t().contiguous() > 0  # a row for each position, so that the next line goes along memory
    numbers = torch.arange(len(work_tiles), dtype=torch.int32, device=work_tiles.device)
    latest = torch.cummax(torch.where(touched, numbers, -1), 1).values
    before = torch.full_like(latest, -1)
    before[:, 1:] = torch.where(touched[:, 1:], latest[:, :-1], -1)
    last = torch.ones_like(touched)
    last[:-1] = before[1:] != before[:-1]
    tile, place = torch.nonzero(last.t().contiguous(), as_tuple=True)
    return tile, torch.stack([positions[:-1].flip(0)[place], before[place, tile].long()], 1)


def _touched(work_tiles: Tensor, ranges: Tensor, tile_n: int) -> tuple[Tensor, Tensor, Tensor]:
    """(work tile, first column, end column) of each stretch of columns that a work tile adds to; sorted, with some columns between."""
    count = work_tiles[:, PARTIAL_END] - work_tiles[:, FULL_START]
    owner, rank = expand(count, int(count.sum()))
    if len(owner) == 0:
        return owner, owner, owner
    entry = work_tiles[owner, FULL_START] + rank
    column, number = ranges[entry].unbind(1)
    start, order = torch.sort(owner * FAR + column)
    num_blocks = torch.where(entry < work_tiles[owner, PARTIAL_START], number, 1)
    end = torch.cummax(start + (num_blocks * tile_n)[order], 0).values
    first, last = segments(start[1:] > end[:-1])
    return start[first] // FAR, start[first] % FAR, end[last] % FAR
