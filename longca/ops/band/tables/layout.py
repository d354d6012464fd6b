"""Which lines there are, of all `Wanted` and head groups."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from longca.masks.grid import BlockGrid
from longca.masks.mask import Mask
from longca.ops.band.tables.ranges import spread
from longca.ops.band.tables.schedule import Wanted


@dataclass(frozen=True, eq=False)
class Layout:
    """Lines are numbered through all *parts*: what one head group has of one `Wanted`. So are lists of steps, which are what a line does:
    a line of bands has its own, those of one row of blocks share one.

    Tables are int64 matrices with a row for each field, so that one operation moves all fields: on a GPU, a plan takes as long as its
    operations take to start.
    """

    wanted: Sequence[Wanted]
    num_lines: list[int]  # (B,) of each part
    parts: Tensor  # (5, B + 1): first line, first list, place in `wanted`, tile, step; the last one: how many lines and lists there are
    part_of: Tensor  # (K,) of each list
    lines: Tensor  # (3, L): part, first row, row behind the last
    list_of: Tensor | None  # (L,); None: each line has its own

    @property
    def num_groups(self) -> int:
        return len(self.num_lines) // len(self.wanted)


def layout_of(mask: Mask, wanted: Sequence[Wanted], device: torch.device) -> Layout:
    """Lines of bands begin at multiples of the tile; those of a block grid never leave a row of blocks."""
    return _of_bands(mask, wanted, device) if mask.grid is None else _of_grid(mask.grid, wanted, device)


def _of_bands(mask: Mask, wanted: Sequence[Wanted], device: torch.device) -> Layout:
    parts, num_lines = [], []
    for number, lines in enumerate(wanted):
        num_rows = mask.seqlen_k if lines.transposed else mask.seqlen_q
        for _ in range(mask.num_groups):
            parts.append((sum(num_lines), sum(num_lines), number, lines.tile, lines.step, num_rows, -(-num_rows // lines.tile)))
            num_lines.append(parts[-1][-1])
    total = sum(num_lines)
    of_part = moved(np.array([*parts, (total, total, 0, 0, 0, 0, 0)]), device)
    part = torch.repeat_interleave(of_part[6], output_size=total)
    first, _, _, tile, _, num_rows, _ = of_part.index_select(1, part).unbind(0)
    row0 = (torch.arange(total, device=device) - first) * tile
    return Layout(wanted, num_lines, of_part[:5], part, torch.stack([part, row0, torch.minimum(row0 + tile, num_rows)]), None)


def _of_grid(grid: BlockGrid, wanted: Sequence[Wanted], device: torch.device) -> Layout:
    parts, num_lines, blocks, num_blocks = [], [], [], 0
    for number, lines in enumerate(wanted):
        for bounds in grid.k_bounds if lines.transposed else grid.q_bounds:
            count = -(-np.diff(bounds) // lines.tile)
            blocks.append(np.column_stack([bounds[:-1], bounds[1:], count, np.full_like(count, len(parts))]))
            parts.append((sum(num_lines), num_blocks, number, lines.tile, lines.step))
            num_lines.append(int(count.sum()))
            num_blocks += len(count)
    of_part = moved(np.array([*parts, (sum(num_lines), num_blocks, 0, 0, 0)]), device)
    of_block = moved(np.concatenate(blocks), device)
    block, rank = spread(of_block[2], sum(num_lines))
    top, bottom, _, part = of_block.index_select(1, block).unbind(0)
    tile = of_part[3][part]
    row0 = torch.addcmul(top, rank, tile)
    return Layout(wanted, num_lines, of_part, of_block[3], torch.stack([part, row0, torch.minimum(row0 + tile, bottom)]), block)


def moved(table: np.ndarray, device: torch.device) -> Tensor:
    """(n, fields) to (fields, n) on the device."""
    return torch.from_numpy(np.ascontiguousarray(table.T, dtype=np.int64)).to(device)
