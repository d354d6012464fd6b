"""Block masks cut by a placement: they stay block masks, of the blocks that a rank holds parts of."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from longca.cp.partition.mask_partition import MaskPartition
from longca.cp.partition.sharding import Sharding, StripedSharding, TokenRanges
from longca.masks.grid import BlockGrid
from longca.masks.mask import Mask

if TYPE_CHECKING:
    from longca.cp.partition.mask_partition import KeyRange


class BlockPartition(MaskPartition):
    def __init__(self, mask: Mask, placement: Sharding) -> None:
        assert mask.grid is not None
        super().__init__(mask, placement)
        self._grid = mask.grid
        self._rows, self._cols = (np.diff(placement.before(bounds.ravel()).reshape(*bounds.shape, -1), axis=1).astype(np.float64)
                                  for bounds in (self._grid.q_bounds, self._grid.k_bounds))
        """tokens of each rank in each block, (G, M, P) and (G, N, P)"""

    @cached_property
    def areas(self) -> np.ndarray:
        return self._sums(self._grid.visible, self._cols)

    @cached_property
    def meetings(self) -> np.ndarray:
        begins = self._grid.visible.copy()
        begins[..., 1:] &= ~self._grid.visible[..., :-1]
        return self._sums(begins, (self._cols > 0).astype(np.float64))

    def _sums(self, blocks: np.ndarray, cols: np.ndarray) -> np.ndarray:
        parts = (rows.T @ (some.astype(np.float64) @ col) for rows, some, col in zip(self._rows, blocks, cols, strict=True))
        return np.sum(list(parts), axis=0).astype(np.int64)

    @cached_property
    def needs(self) -> TokenRanges:
        found = []
        for rows, visible, bounds in zip(self._rows, self._grid.visible, self._grid.k_bounds, strict=True):
            seen = (rows > 0).astype(np.float32).T @ visible.astype(np.float32) > 0
            rank, block = np.nonzero(seen & (np.diff(bounds) > 0))
            found.append((rank, bounds[block], bounds[block + 1]))
        rank, first, behind = (np.concatenate(column) for column in zip(*found, strict=True))
        return TokenRanges.union(rank, first, behind, self.placement.seqlen)

    def local(self, rank: int, keys: Sequence[KeyRange]) -> Mask:
        num_queries = int(self.placement.num_tokens[rank])
        num_keys = sum(behind - first for _, first, behind in keys)
        if num_queries == 0 or num_keys == 0:
            return Mask(num_queries, num_keys, tuple(np.empty((0, 6)) for _ in range(self.mask.num_groups)), name=self.mask.name)
        parts = self._of_stripes(rank, keys) if isinstance(self.placement, StripedSharding) else self._of_runs(rank, keys)
        return Mask(num_queries, num_keys, grid=parts, name=self.mask.name)

    def _of_stripes(self, rank: int, keys: Sequence[KeyRange]) -> BlockGrid:
        num_queries = int(self.placement.num_tokens[rank])
        return _beside([self._grid.stripe(rank, source, self.placement.world).move(0, -first, num_queries, behind - first)
                        for source, first, behind in keys])

    def _of_runs(self, rank: int, keys: Sequence[KeyRange]) -> BlockGrid:
        tokens = [part for key_range in keys for part in _parts(self.placement.ranges(key_range[0]), *key_range[1:])]
        rows = self.placement.ranges(rank)
        seen = _below([self._grid.move(-part.start, 0, len(part), self.placement.seqlen) for part in rows])
        num_queries = int(self.placement.num_tokens[rank])
        return _beside([seen.move(0, -part.start, num_queries, len(part)) for part in tokens])


def _parts(ranges: Sequence[range], first: int, behind: int) -> list[range]:
    """What a rank holds from its own index `first` on, up to `behind`, as ranges of tokens."""
    found, start = [], 0
    for part in ranges:
        inside = part[max(first - start, 0):max(behind - start, 0)]
        found += [inside] if inside else []
        start += len(part)
    return found


def _beside(grids: Sequence[BlockGrid]) -> BlockGrid:
    """Grids of the same rows, one right of the other."""
    return BlockGrid(np.concatenate([grid.visible for grid in grids], axis=2), grids[0].q_bounds,
                     _one_after_the_other([grid.k_bounds for grid in grids]))


def _below(grids: Sequence[BlockGrid]) -> BlockGrid:
    """Grids of the same columns, one below the other."""
    return BlockGrid(np.concatenate([grid.visible for grid in grids], axis=1),
                     _one_after_the_other([grid.q_bounds for grid in grids]), grids[0].k_bounds)


def _one_after_the_other(bounds: Sequence[np.ndarray]) -> np.ndarray:
    widths = [np.diff(part, axis=1) for part in bounds]
    return np.pad(np.cumsum(np.concatenate(widths, axis=1), axis=1), ((0, 0), (1, 0)))
