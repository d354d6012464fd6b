"""Whose turn it is: for each row of a piece, which piece has to have added to it before, so that sums come about in one order."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from longca.masks.mask import Mask
from longca.ops.band_lines import FIRST, LAST, MIDDLE, Lines
from longca.ops.band_ranges import spread, stretches

FAR = 1 << 32  # beyond any column
# Queries that see a key; how many times more than the mean the longest has. Found on one H200, 64:8 heads: docs/band.md.
ALIKE, SHORT, LONG = 1500, 3500, 2000
UNEVEN = 8
# Lines of so many KV heads start together. With fewer, turns were slow but under masks of which this share of all queries sees a key.
KV_HEADS, MOST = 4, 0.4


def way_of_turns(mask: Mask, num_kv_heads: int) -> int:
    """In which way pieces of keys take turns at adding to dQ, by what was quickest: 1 from the last row on, where pieces are long and
    alike, so that those who begin one after the other soon follow each other at a step's distance; 2 from the first row, where they are
    long, but some many times longer; 0 in none: turns would cost more than a kernel of its own for dQ.
    """
    if mask.grid is not None or mask.area == 0:
        return 0
    mean = mask.area / (mask.num_groups * mask.seqlen_k)
    if num_kv_heads % KV_HEADS and mean < MOST * mask.seqlen_q:
        return 0
    longest = max(int(np.minimum(bands[:, 1] - bands[:, 0], bands[:, 5] - bands[:, 4] + 1).max(initial=0)) for bands in mask.groups)
    if mean >= SHORT and longest * ALIKE <= mean * mean:
        return 1
    return 2 if mean >= LONG and longest >= UNEVEN * mean else 0


def with_turns(lines: Lines, way: int) -> Lines:
    """The same with `waits` and `waits_of`, in the order of the pieces of a group. O(pieces · places where one begins or ends).

    Args:
        way: of `Wanted.in_order`.
    """
    waits, waits_of, num_waits, runs = [], [], 0, lines.runs.long()
    number = torch.arange(lines.pieces.shape[1] + 1, device=runs.device)
    for pieces in lines.pieces.long():
        piece, ends = _of_group(pieces, runs, lines.step, way)
        bounds = torch.searchsorted(piece.contiguous(), number) + num_waits
        waits.append(ends)
        waits_of.append(torch.stack([bounds[:-1], bounds[1:]], 1))
        num_waits += len(ends)
    return replace(lines, waits=torch.cat(waits).to(torch.int32), waits_of=torch.stack(waits_of).to(torch.int32))


def _of_group(pieces: Tensor, runs: Tensor, step: int, way: int) -> tuple[Tensor, Tensor]:
    """(piece, (first column, piece to wait for)) of each stretch of columns, from the right; way 2: as if all columns were negative."""
    owner, begin, end = _touched(pieces, runs, step)
    if len(owner) == 0:
        return owner, pieces.new_zeros(0, 2)
    if way == 2:
        begin, end = -end, -begin
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
