"""Steps of a block grid: each run of visible blocks is full steps and, where they do not fit, a partial one at its end."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from longca.masks.grid import BlockGrid
from longca.ops.band.tables.layout import Layout
from longca.ops.band.tables.partial_masks import Shapes
from longca.ops.band.tables.ranges import chosen, upto


def steps_of_blocks(grid: BlockGrid, layout: Layout, device: torch.device) -> tuple[Tensor, Shapes]:
    """(runs of full steps: (3, F) list, column, number; partial steps). O(blocks)."""
    visible, runs = _tensor(grid.visible, bool).to(device), {}
    for lines in layout.wanted:
        if lines.transposed not in runs:
            runs[lines.transposed] = _runs(visible.transpose(1, 2), grid.q_bounds) if lines.transposed else _runs(visible, grid.k_bounds)
    runs = [runs[lines.transposed] for lines in layout.wanted]
    counts = [(end - begin) // lines.step for lines, (_, begin, end) in zip(layout.wanted, runs, strict=True)]
    rests = [(end - begin) % lines.step for lines, (_, begin, end) in zip(layout.wanted, runs, strict=True)]
    totals = torch.stack([torch.count_nonzero(number) for number in (*counts, *rests)]).tolist()

    full, partial, num_lists, base = [], [], 0, max(lines.step for lines in layout.wanted)
    for number, (row, begin, end) in enumerate(runs):
        some = chosen(counts[number] > 0, totals[number])
        full.append(torch.stack([row[some] + num_lists, begin[some], counts[number][some]]))
        some = chosen(rests[number] > 0, totals[len(runs) + number])
        rest = rests[number][some]
        partial.append(torch.stack([row[some] + num_lists, end[some] - rest, rest + number * base]))
        num_lists += grid.num_groups * (grid.visible.shape[2 if layout.wanted[number].transposed else 1])
    return torch.cat(full, 1), _shapes(torch.cat(partial, 1), len(runs), base)


def _shapes(partial: Tensor, num_wanted: int, base: int) -> Shapes:
    """Of partial steps whose third row says how many columns all rows see, plus `base` for each `Wanted` before theirs."""
    line, column, size = partial.unbind(0)
    seen = torch.zeros(num_wanted, base, dtype=torch.int64, device=size.device)
    seen.view(-1).scatter_(0, size, 1)
    number = torch.cumsum(seen, 1) - 1
    table = torch.nonzero(seen)[:, 1:].to(torch.int32) << 16
    return Shapes(torch.stack([line, column, number.flatten()[size]]), table, upto(seen.sum(1)))


def _runs(visible: Tensor, bounds: np.ndarray) -> Sequence[Tensor]:
    """(row of blocks, first column, column behind the last) of each run of visible blocks. Shapes: visible (G, M, N), bounds (G, N + 1)."""
    num_groups, num_rows, across = visible.shape
    padded = visible.new_zeros(num_groups * num_rows, across + 2)
    padded[:, 1:-1] = visible.reshape(len(padded), across)
    changes = torch.nonzero((padded[:, 1:] != padded[:, :-1]).flatten()).squeeze(1).view(-1, 2)  # one run after the other
    row = changes[:, 0] // (across + 1)
    group = row // num_rows
    begin, end = _tensor(bounds, np.int64).to(visible.device).flatten()[(changes + ((group - row) * (across + 1))[:, None]).t()]
    if (np.diff(bounds) == 0).any():  # blocks without columns
        row, begin, end = torch.stack([row, begin, end])[:, begin < end]
    return row, begin, end


def _tensor(array: np.ndarray, dtype: type) -> Tensor:
    """In the same memory where torch takes it as it lies: not if it is read only, or runs backwards."""
    return torch.from_numpy(np.require(array, dtype, "CW"))
