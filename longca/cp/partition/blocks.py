"""Partitions of block masks, which remain block masks of the parts of blocks on each rank."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from longca.cp.partition.mask_partition import MaskPartition
from longca.cp.partition.sharding import Sharding, StripedSharding, TokenRanges
from longca.masks import BlockGrid, Mask

if TYPE_CHECKING:
    from longca.cp.partition.mask_partition import KvRange


class BlockPartition(MaskPartition):
    """A block mask on any sharding. Shapes: G head groups, M × N blocks, P ranks."""

    def __init__(self, mask: Mask, sharding: Sharding) -> None:
        assert mask.grid is not None
        super().__init__(mask, sharding)
        self._grid = mask.grid
        self._rows, self._cols = (
            np.diff(sharding.num_before(bounds.ravel()).reshape(*bounds.shape, -1), axis=1).astype(np.float64)
            for bounds in (self._grid.q_bounds, self._grid.k_bounds)
        )
        """tokens of each rank in each block, (G, M, P) and (G, N, P)"""

    @cached_property
    def areas(self) -> np.ndarray:
        return self._sum_over_blocks(self._grid.visible, self._cols)

    @cached_property
    def band_rows(self) -> np.ndarray:
        begins = self._grid.visible.copy()
        begins[..., 1:] &= ~self._grid.visible[..., :-1]
        return self._sum_over_blocks(begins, (self._cols > 0).astype(np.float64))

    def _sum_over_blocks(self, blocks: np.ndarray, cols: np.ndarray) -> np.ndarray:
        parts = (
            rows.T @ (some.astype(np.float64) @ col)
            for rows, some, col in zip(self._rows, blocks, cols, strict=True)
        )
        return np.sum(list(parts), axis=0).astype(np.int64)

    @cached_property
    def needed_keys(self) -> TokenRanges:
        needed = []
        for rows, visible, bounds in zip(self._rows, self._grid.visible, self._grid.k_bounds, strict=True):
            seen = (rows > 0).astype(np.float32).T @ visible.astype(np.float32) > 0
            rank, block = np.nonzero(seen & (np.diff(bounds) > 0))
            needed.append((rank, bounds[block], bounds[block + 1]))
        rank, start, end = (np.concatenate(column) for column in zip(*needed, strict=True))
        return TokenRanges.union(rank, start, end, self.sharding.seqlen)

    def local_mask(self, rank: int, keys: Sequence[KvRange]) -> Mask:
        num_queries = int(self.sharding.num_tokens[rank])
        num_keys = sum(end - start for _, start, end in keys)
        if num_queries == 0 or num_keys == 0:
            return Mask(
                num_queries,
                num_keys,
                tuple(np.empty((0, 6)) for _ in range(self.mask.num_groups)),
                name=self.mask.name,
            )
        grid = (
            self._striped_grid(rank, keys)
            if isinstance(self.sharding, StripedSharding)
            else self._chunked_grid(rank, keys)
        )
        return Mask(num_queries, num_keys, grid=grid, name=self.mask.name)

    def _striped_grid(self, rank: int, keys: Sequence[KvRange]) -> BlockGrid:
        num_queries = int(self.sharding.num_tokens[rank])
        return _side_by_side(
            [
                self._grid.stripe(rank, owner, self.sharding.world).move(0, -start, num_queries, end - start)
                for owner, start, end in keys
            ]
        )

    def _chunked_grid(self, rank: int, keys: Sequence[KvRange]) -> BlockGrid:
        tokens = [
            part
            for owner, start, end in keys
            for part in _token_ranges(self.sharding.ranges(owner), start, end)
        ]
        return part_of_grid(self._grid, self.sharding.ranges(rank), tokens)


def part_of_grid(grid: BlockGrid, rows: Sequence[range], keys: Sequence[range]) -> BlockGrid:
    """The grid of these queries and keys, both concatenated."""
    num_rows = sum(map(len, rows))
    seqlen_k = int(grid.k_bounds.max())
    seen = _stacked([grid.move(-part.start, 0, len(part), seqlen_k) for part in rows])
    return _side_by_side([seen.move(0, -part.start, num_rows, len(part)) for part in keys])


def _token_ranges(ranges: Sequence[range], start: int, end: int) -> list[range]:
    """The tokens with local indices start..end, on a rank with these ranges."""
    pieces = []
    held = 0
    for part in ranges:
        inside = part[max(start - held, 0) : max(end - held, 0)]
        pieces += [inside] if inside else []
        held += len(part)
    return pieces


def _side_by_side(grids: Sequence[BlockGrid]) -> BlockGrid:
    """Horizontal concatenation of grids with the same rows."""
    return BlockGrid(
        np.concatenate([grid.visible for grid in grids], axis=2),
        grids[0].q_bounds,
        _joined_bounds([grid.k_bounds for grid in grids]),
    )


def _stacked(grids: Sequence[BlockGrid]) -> BlockGrid:
    """Vertical concatenation of grids with the same columns."""
    return BlockGrid(
        np.concatenate([grid.visible for grid in grids], axis=1),
        _joined_bounds([grid.q_bounds for grid in grids]),
        grids[0].k_bounds,
    )


def _joined_bounds(bounds: Sequence[np.ndarray]) -> np.ndarray:
    widths = [np.diff(part, axis=1) for part in bounds]
    return np.pad(np.cumsum(np.concatenate(widths, axis=1), axis=1), ((0, 0), (1, 0)))
