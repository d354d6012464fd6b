"""What each line of a mask sees, as spans of columns; on the device, for all head groups at once.

Rows are the lines' axis: of queries, or, with `transposed`, of keys. All tensors are int64.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from longca.masks.band import HI, K0, K1, LO, Q0, Q1, transpose
from longca.masks.mask import Mask


@dataclass(frozen=True, eq=False)
class Strips:
    """What one band shows one list: rows [row0, row1) see columns [k0, k1) at offsets lo … hi. Sorted by list, then by `left`."""

    line: Tensor  # the list
    row0: Tensor
    row1: Tensor
    k0: Tensor
    k1: Tensor
    lo: Tensor
    hi: Tensor
    left: Tensor  # some of these rows see [left, right)
    right: Tensor


@dataclass(frozen=True, eq=False)
class Spans:
    """Lines are numbered through all head groups. Lines that see the same share a list of spans: those of one row of blocks."""

    group: Tensor  # (L,) of each line
    row0: Tensor  # (L,)
    row1: Tensor  # (L,)
    list_of: Tensor  # (L,)
    top: Tensor  # (K,) of each list: first row of its lines
    bottom: Tensor  # (K,)
    line: Tensor  # (T,) list of each touched span: some row of its lines sees each of its columns; sorted, disjoint
    begin: Tensor  # (T,)
    end: Tensor  # (T,)
    owner: Tensor  # (F,) the touched span in which all rows see [full0, full1); sorted, disjoint
    full0: Tensor  # (F,)
    full1: Tensor  # (F,)
    strips: Strips


def spread(count: Tensor) -> tuple[Tensor, Tensor]:
    """(n, rank): count[n] entries for each n, ranked from 0."""
    owner = torch.repeat_interleave(torch.arange(len(count), device=count.device), count)
    return owner, torch.arange(len(owner), device=count.device) - (torch.cumsum(count, 0) - count)[owner]


def visible_blocks(mask: Mask, device: torch.device) -> Tensor | None:
    """The block grid's choice on the device, None for a mask of bands: the one large table that a plan begins with."""
    return None if mask.grid is None else torch.from_numpy(mask.grid.visible).to(device)


def mask_spans(mask: Mask, tile: int, transposed: bool, device: torch.device, visible: Tensor | None = None) -> Spans:
    """O(bands · lines that each meets); for block grids O(blocks), and lines never leave a row of blocks.

    Args:
        visible: of `visible_blocks`, if it is there already.
    """
    if mask.grid is None:
        return _of_bands(mask, tile, transposed, device)
    visible = visible_blocks(mask, device) if visible is None else visible
    assert visible is not None
    return _of_grid(mask, visible, tile, transposed, device)


def _of_bands(mask: Mask, tile: int, transposed: bool, device: torch.device) -> Spans:
    num_rows, num_cols = (mask.seqlen_k, mask.seqlen_q) if transposed else (mask.seqlen_q, mask.seqlen_k)
    groups = [transpose(bands) if transposed else bands for bands in mask.groups]
    counts = torch.tensor([len(bands) for bands in groups], device=device)
    bands = torch.from_numpy(np.concatenate(groups)).to(device)
    per_group = -(-num_rows // tile)
    group, line = spread(torch.full((len(groups),), per_group, dtype=torch.int64, device=device))
    row0, row1 = line * tile, torch.clamp(line * tile + tile, max=num_rows)

    first = bands[:, Q0] // tile
    owner, rank = spread(-(-bands[:, Q1] // tile) - first)
    line = first[owner] + rank + torch.repeat_interleave(counts)[owner] * per_group
    b = bands[owner]
    top, bottom = torch.maximum(b[:, Q0], row0[line]), torch.minimum(b[:, Q1], row1[line])
    # starts and ends of a band's rows never fall, so some of its rows see [left, right) and all of them [inner0, inner1)
    left, right = torch.maximum(b[:, K0], top + b[:, LO]), torch.minimum(b[:, K1], bottom + b[:, HI])
    inner0, inner1 = torch.maximum(b[:, K0], bottom - 1 + b[:, LO]), torch.minimum(b[:, K1], top + 1 + b[:, HI])
    inner1 = torch.maximum(inner0, inner1)
    stride = num_cols + 1
    order = torch.argsort(line * stride + left, stable=True)
    columns = (line, top, bottom, b[:, K0], b[:, K1], b[:, LO], b[:, HI], left, right)
    strips = Strips(*(column[order] for column in columns))
    begin, end = _reaching(line * stride + left, line * stride + right, torch.ones_like(line), lambda total, place: total > 0)
    full0, full1 = _reaching(line * stride + inner0, line * stride + inner1, bottom - top,
                             lambda total, place: total == (row1 - row0)[place // stride])
    span_line = begin // stride
    full_owner = torch.searchsorted(begin, full0, right=True) - 1
    offset = (full0 // stride) * stride
    lists = torch.arange(len(row0), device=device)
    return Spans(group, row0, row1, lists, row0, row1, span_line, begin - span_line * stride, end - span_line * stride, full_owner,
                 full0 - offset, full1 - offset, strips)


def _reaching(begin: Tensor, end: Tensor, weight: Tensor,
              enough: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Maximal ranges (begin, end), sorted, over which the weights of the given ranges sum up to enough at their place."""
    place, order = torch.sort(torch.cat([begin, end]))
    total = torch.cumsum(torch.cat([weight, -weight])[order], 0)
    last = torch.ones_like(place, dtype=torch.bool)
    last[:-1] = place[1:] != place[:-1]
    place, total = place[last], total[last]
    turns = enough(total, place)
    turns[1:] ^= turns[:-1].clone()
    place = place[turns]
    return place[0::2].contiguous(), place[1::2].contiguous()


def _of_grid(mask: Mask, visible: Tensor, tile: int, transposed: bool, device: torch.device) -> Spans:
    assert mask.grid is not None
    rows, cols = torch.from_numpy(mask.grid.q_bounds).to(device), torch.from_numpy(mask.grid.k_bounds).to(device)
    if transposed:
        visible, rows, cols = visible.transpose(1, 2), cols, rows
    num_groups, num_blocks, across = visible.shape
    heights = torch.diff(rows, dim=1).flatten()
    lines_of_block = -(-heights // tile)
    block, rank = spread(lines_of_block)
    group = block // num_blocks
    row0 = rows[:, :-1].flatten()[block] + rank * tile
    row1 = torch.minimum(row0 + tile, rows[:, 1:].flatten()[block])

    padded = torch.zeros(num_groups * num_blocks, across + 2, dtype=torch.bool, device=device)
    padded[:, 1:-1] = visible.reshape(-1, across)
    changes = torch.nonzero((padded[:, 1:] != padded[:, :-1]).flatten()).squeeze(1)
    run_block, first = changes[0::2] // (across + 1), changes[0::2] % (across + 1)
    behind = first + changes[1::2] - changes[0::2]
    begin, end = (cols.flatten()[run_block // num_blocks * (across + 1) + bound] for bound in (first, behind))
    solid = begin < end
    run_block, begin, end = run_block[solid], begin[solid], end[solid]

    top, bottom = rows[:, :-1].flatten(), rows[:, 1:].flatten()
    far = torch.full_like(begin, 1 << 40)
    strips = Strips(run_block, top[run_block], bottom[run_block], begin, end, -far, far, begin, end)
    every = torch.arange(len(begin), device=device)
    return Spans(group, row0, row1, block, top, bottom, run_block, begin, end, every, begin, end, strips)
