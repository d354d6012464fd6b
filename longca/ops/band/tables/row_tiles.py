"""What each line of a mask of bands sees, as spans of columns. Rows are the lines' axis: of queries, or, with `transposed`, of keys."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from longca.masks.band import Q0, Q1, transpose
from longca.masks.mask import Mask
from longca.ops.band.tables.layout import Layout, moved
from longca.ops.band.tables.ranges import stretches


@dataclass(frozen=True, eq=False)
class Spans:
    """Column c of line n is the *place* n · stride + c, so that the columns of all lines lie on one axis. All tensors are int64."""

    layout: Layout
    stride: int
    touched: Tensor  # (3, T): line, begin, end; some row sees each of these places; sorted, disjoint
    full: Tensor  # (3, F): touched span, begin, end; all rows see all of it; sorted, disjoint
    left: Tensor  # (N,) first place of each strip, which is what one band shows one line; sorted
    reach: Tensor  # (N,) where all strips so far end
    strips: Tensor  # (6, N): rows [row0, row1) of a shape see the places [k0, k1) with lo <= place - row <= hi


def spans_of(mask: Mask, layout: Layout, device: torch.device) -> Spans:
    """O(bands · lines that each meets)."""
    stride = max(mask.seqlen_q, mask.seqlen_k) + 1
    bands, num_lines = _bands(mask, layout)
    num_strips = int(num_lines.sum())
    if num_strips == 0:
        nothing = layout.lines.new_zeros(6, 0)
        return Spans(layout, stride, nothing[:3], nothing[:3], nothing[0], nothing[0], nothing)
    band = torch.repeat_interleave(moved(num_lines, device), output_size=num_strips)
    q0, q1, k0, k1, lo, hi, before = moved(bands, device).index_select(1, band).unbind(0)
    line = before + torch.arange(num_strips, device=device)
    part, top, bottom = layout.lines.index_select(1, line).unbind(0)
    row0, row1 = torch.maximum(q0, top) - top, torch.minimum(q1, bottom) - top
    place = line * stride
    k0, k1 = k0 + place, k1 + place
    place = place + top
    lo, hi = lo + place, hi + place
    # starts and ends of a band's rows never fall, so some of its rows see [left, right) and all of them [inner0, inner1)
    left, right = torch.maximum(k0, row0 + lo), torch.minimum(k1, row1 + hi)
    inner0, inner1 = torch.maximum(k0, row1 + lo - 1), torch.minimum(k1, row0 + hi + 1)
    full = _seen_by_all(inner0, torch.maximum(inner0, inner1), row1 - row0, layout.lines[2] - layout.lines[1], stride)

    left, order = torch.sort(left, stable=True)
    row1 = torch.where(row1 == bottom - top, layout.parts[3][part], row1)  # what rows past a line's end see is no matter
    strips = torch.stack([row0, row1, k0, k1, lo, hi, line, right]).index_select(1, order)
    reach = torch.cummax(strips[7], 0).values
    first, last = stretches(left[1:] > reach[:-1])
    begin = left[first]
    touched = torch.stack([strips[6][first], begin, reach[last]])
    return Spans(layout, stride, touched, torch.stack([torch.searchsorted(begin, full[0], right=True) - 1, *full]), left, reach, strips[:6])


def _bands(mask: Mask, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """((n, 7), (n,)): bands of all parts, each with its first line less the lines that those before it meet; how many lines it meets."""
    bands, first, count, before = [], [], [], 0
    for lines in layout.wanted:
        for band in mask.groups:
            band = transpose(band) if lines.transposed else band
            bands.append(band)
            first.append(band[:, Q0] // lines.tile + before)
            count.append(-(-band[:, Q1] // lines.tile) + before - first[-1])
            before += layout.num_lines[len(bands) - 1]
    num_lines = np.concatenate(count)
    return np.column_stack([np.concatenate(bands), np.concatenate(first) - np.cumsum(num_lines) + num_lines]), num_lines


def _seen_by_all(begin: Tensor, end: Tensor, num_rows: Tensor, height: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    """Maximal ranges (begin, end), sorted, in which the rows of the given ranges sum up to a whole line."""
    place, order = torch.sort(torch.cat([begin, end]))
    total = torch.cumsum(torch.cat([num_rows, -num_rows])[order], 0)[:-1]
    begin, end = place[:-1], place[1:]
    found = torch.nonzero((begin < end) & (total == height[begin // stride])).squeeze(1)
    begin, end = begin[found], end[found]
    if len(found) > 1:
        first, last = stretches(begin[1:] > end[:-1])
        begin, end = begin[first], end[last]
    return begin, end
