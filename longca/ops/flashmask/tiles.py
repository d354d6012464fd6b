"""The tile lists of FlashMask's column form: tiles to visit, with an element test or without, found by minima
and maxima alone.

Shapes: M head groups with masks of their own, C columns (1, 2 or 4), Sk keys.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, eq=False)
class TileLists:
    """Tiles to visit, row tile by row tile: row tile l has `tiles[offsets[l]:offsets[l + 1]]`. Head groups
    come one after the other."""

    full_offsets: torch.Tensor  # int32 (M · row tiles + 1,): tiles of which every element is visible
    full_tiles: torch.Tensor  # int32
    part_offsets: torch.Tensor  # int32 (M · row tiles + 1,): tiles that need the element test
    part_tiles: torch.Tensor  # int32

    @property
    def num_bytes(self) -> int:
        parts = (self.full_offsets, self.full_tiles, self.part_offsets, self.part_tiles)
        return sum(part.numel() * part.element_size() for part in parts)


def row_lists(columns: torch.Tensor, causal: bool, seqlen_q: int, tile_q: int, tile_k: int) -> TileLists:
    """For each tile of queries, its tiles of keys. `columns`: int32 (M, C, Sk)."""
    full, touched = _kinds(columns, causal, seqlen_q, tile_q, tile_k)
    return TileLists(*_csr(full), *_csr(touched & ~full))


def col_lists(columns: torch.Tensor, causal: bool, seqlen_q: int, tile_q: int, tile_k: int) -> TileLists:
    """For each tile of keys, its tiles of queries."""
    full, touched = (kind.transpose(1, 2) for kind in _kinds(columns, causal, seqlen_q, tile_q, tile_k))
    return TileLists(*_csr(full), *_csr(touched & ~full))


def _kinds(
    columns: torch.Tensor, causal: bool, seqlen_q: int, tile_q: int, tile_k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(full, touched): bool (M, tiles of queries, tiles of keys). A tile that sticks out is never full."""
    seqlen_k = columns.shape[2]
    row0 = torch.arange(0, seqlen_q, tile_q, device=columns.device)[:, None]
    row1 = (row0 + tile_q).clamp(max=seqlen_q)
    key0 = torch.arange(0, seqlen_k, tile_k, device=columns.device)
    key1 = (key0 + tile_k).clamp(max=seqlen_k)
    full = ((row0 + tile_q <= seqlen_q) & (key0 + tile_k <= seqlen_k)).expand(columns.shape[0], -1, -1)
    touched = torch.ones_like(full)
    if causal:
        full, touched = full & (row0 >= key1 - 1), touched & (row1 > key0)
    for start, end in _hidden_ranges(columns, causal, seqlen_q):
        (start_min, start_max), (end_min, end_max) = _extremes(start, tile_k), _extremes(end, tile_k)
        full = full & ((row1 <= start_min) | (row0 >= end_max))
        touched = touched & ~((row0 >= start_max) & (row1 <= end_min))
    return full & touched, touched


def _hidden_ranges(
    columns: torch.Tensor, causal: bool, seqlen_q: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The ranges of queries that the columns hide from each key: (starts, ends), each int32 (M, Sk)."""
    start, end = torch.zeros_like(columns[:, 0]), torch.full_like(columns[:, 0], seqlen_q)
    named = columns.unbind(1)
    if len(named) == 1:
        return [(named[0], end)]
    if len(named) == 2:
        return [(named[0], named[1])] if causal else [(named[0], end), (start, named[1])]
    return [(named[0], named[1]), (named[2], named[3])]


def _extremes(column: torch.Tensor, tile_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(least, greatest) of each tile of keys, int32 (M, 1, tiles)."""
    sticks_out = -column.shape[1] % tile_k
    last = column[:, -1:].expand(-1, sticks_out)
    tiles = torch.cat([column, last], dim=1).unflatten(1, (-1, tile_k))
    return tiles.amin(2)[:, None], tiles.amax(2)[:, None]


def _csr(chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(offsets, indices) of the True entries in each row of a bool (M, rows, across)."""
    rows = chosen.flatten(0, 1)
    offsets = torch.zeros(len(rows) + 1, dtype=torch.int32, device=chosen.device)
    offsets[1:] = rows.sum(1).cumsum(0)
    return offsets, rows.nonzero()[:, 1].int()
