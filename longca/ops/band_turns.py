"""Whose turn it is: for each row of a piece, which piece has to have added to it before, so that sums come about in one order."""

import torch
from torch import Tensor

from longca.ops.band_lines import FIRST, LAST, MIDDLE, Lines
from longca.ops.band_spans import spread


def turns(lines: Lines) -> tuple[Tensor, Tensor]:
    """(waits, waits_of) of `Lines`: in the order of the pieces of a group. O(pieces · places where a run begins or ends) to make."""
    waits, waits_of, num_waits = [], [], 0
    for pieces in lines.pieces.long():
        some, ends = _of_group(pieces, lines.runs.long(), lines.step)
        count = torch.bincount(some[0], minlength=len(pieces))
        behind = torch.cumsum(count, 0) + num_waits
        waits.append(ends)
        waits_of.append(torch.stack([behind - count, behind], 1))
        num_waits += len(ends)
    return torch.cat(waits).to(torch.int32), torch.stack(waits_of).to(torch.int32)


def _of_group(pieces: Tensor, runs: Tensor, step: int) -> tuple[tuple[Tensor, ...], Tensor]:
    """((piece, rank), (first column, piece to wait for)) of each stretch of columns, from the right."""
    owner, rank = spread(pieces[:, LAST] - pieces[:, FIRST])
    run = pieces[owner, FIRST] + rank
    column, steps = runs[run, 0], torch.where(run < pieces[owner, MIDDLE], runs[run, 1], 1)
    places, index = torch.unique(torch.cat([column, column + steps * step]), return_inverse=True)
    if len(places) == 0:
        return (owner, rank), pieces.new_zeros(0, 2)
    begins, ends = index.split(len(owner))
    depth = torch.zeros(len(pieces), len(places), dtype=torch.int32, device=pieces.device)
    one = torch.ones_like(owner, dtype=torch.int32)
    depth.index_put_((owner, begins), one, accumulate=True).index_put_((owner, ends), -one, accumulate=True)
    touched = torch.cumsum(depth, 1, dtype=torch.int32)[:, :-1].flip(1) > 0
    number = torch.arange(len(pieces), dtype=torch.int32, device=pieces.device)[:, None]
    latest = torch.cummax(torch.where(touched, number, -1), 0).values
    before = torch.full_like(latest, -1)
    before[1:] = torch.where(touched[1:], latest[:-1], -1)
    last = torch.ones_like(touched)
    last[:, :-1] = before[:, 1:] != before[:, :-1]
    some = torch.nonzero(last, as_tuple=True)
    return some, torch.stack([places[:-1].flip(0)[some[1]], before[some].long()], 1)
