"""Whose turn it is: for each row of a piece, which piece has to have added to it before, so that sums come about in one order."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from longca.masks.band import HI, K0, K1, LO, Q1
from longca.masks.mask import Mask
from longca.ops.band.tables.ranges import spread, stretches
from longca.ops.band.tables.schedule import FIRST, LAST, MIDDLE, Lines

FAR = 1 << 32  # beyond any column
# Found on one H200, 64:8 heads, under 165 masks of whole sequences and of ranks: docs/band.md.
ALIKE, LONG, MANY = 0.9, 3000, 4000  # share of the keys that the last query sees; queries that see a key, and keys a query, in the mean
# Lines of so many KV heads start together. With fewer, turns were slow but under masks of which this share of all queries sees a key.
KV_HEADS, MOST = 4, 0.4


def takes_turns(mask: Mask, num_kv_heads: int) -> bool:
    """Whether pieces of keys take turns at adding to dQ: where that is quicker than a kernel of its own for dQ. So it is where pieces are
    long and many, and the last query sees nearly all keys, as under `causal`, but not where there are documents: all pieces begin with its
    rows then, and soon follow each other at a step's distance.
    """
    least = mask.num_groups * max(LONG * mask.seqlen_k, MANY * mask.seqlen_q)
    if mask.grid is not None or mask.area == 0 or mask.area < least:
        return False
    if num_kv_heads % KV_HEADS and mask.area < MOST * mask.num_groups * mask.seqlen_q * mask.seqlen_k:
        return False
    return sum(map(seen_by_the_last, mask.groups)) >= ALIKE * mask.num_groups * mask.seqlen_k


def seen_by_the_last(bands: np.ndarray) -> int:
    """Keys that the last query sees, of those who see any."""
    last = bands[bands[:, Q1] == bands[:, Q1].max(initial=0)]
    query = last[:, Q1] - 1
    return int(np.maximum(np.minimum(last[:, K1], query + last[:, HI] + 1) - np.maximum(last[:, K0], query + last[:, LO]), 0).sum())


def with_turns(lines: Lines) -> Lines:
    """The same with `waits` and `waits_of`, in the order of the pieces of a group. O(pieces · places where one begins or ends)."""
    waits, waits_of, num_waits, runs = [], [], 0, lines.runs.long()
    number = torch.arange(lines.pieces.shape[1] + 1, device=runs.device)
    for pieces in lines.pieces.long():
        piece, ends = _of_group(pieces, runs, lines.step)
        bounds = torch.searchsorted(piece.contiguous(), number) + num_waits
        waits.append(ends)
        waits_of.append(torch.stack([bounds[:-1], bounds[1:]], 1))
        num_waits += len(ends)
    return replace(lines, waits=torch.cat(waits).to(torch.int32), waits_of=torch.stack(waits_of).to(torch.int32))


def _of_group(pieces: Tensor, runs: Tensor, step: int) -> tuple[Tensor, Tensor]:
    """(piece, (first column, piece to wait for)) of each stretch of columns, from the right."""
    owner, begin, end = _touched(pieces, runs, step)
    if len(owner) == 0:
        return owner, pieces.new_zeros(0, 2)
    places, index = torch.unique(torch.stack([begin, end]), return_inverse=True)
    depth = torch.zeros(len(pieces), len(places), dtype=torch.int8, device=pieces.device)
    depth[owner, index[0]], depth[owner, index[1]] = 1, -1
    depth = torch.cumsum(depth.view(-1), 0, dtype=torch.int8).view(depth.shape)  # of all rows at once, since each ends at 0
    touched = depth[:, :-1].flip(1).t().contiguous() > 0  # a row for each place, so that the next line goes along memory
    latest = torch.cummax(torch.where(touched, torch.arange(len(pieces), dtype=torch.int32, device=pieces.device), -1), 1).values
    before = torch.full_like(latest, -1)
    before[:, 1:] = torch.where(touched[:, 1:], latest[:, :-1], -1)
    last = torch.ones_like(touched)
    last[:-1] = before[1:] != before[:-1]
    piece, place = torch.nonzero(last.t().contiguous(), as_tuple=True)
    return piece, torch.stack([places[:-1].flip(0)[place], before[place, piece].long()], 1)


def _touched(pieces: Tensor, runs: Tensor, step: int) -> tuple[Tensor, Tensor, Tensor]:
    """(piece, first column, column behind the last) of each stretch of columns that a piece adds to; sorted, with some columns between."""
    count = pieces[:, LAST] - pieces[:, FIRST]
    owner, rank = spread(count, int(count.sum()))
    if len(owner) == 0:
        return owner, owner, owner
    run = pieces[owner, FIRST] + rank
    column, number = runs[run].unbind(1)
    begin, order = torch.sort(owner * FAR + column)
    end = torch.cummax(begin + (torch.where(run < pieces[owner, MIDDLE], number, 1) * step)[order], 0).values
    first, last = stretches(begin[1:] > end[:-1])
    return begin[first] // FAR, begin[first] % FAR, end[last] % FAR
