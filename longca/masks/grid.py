"""Block masks: visible (q-block, k-block) pairs for each head group; a compact form of many full bands."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np

from longca.masks.band import INF


@dataclass(frozen=True, eq=False)
class BlockGrid:
    """A grid of blocks, each visible or hidden.

    Shapes: G head groups, M q-blocks, N k-blocks. Block (m, n) of group g covers rows q_bounds[g,
        m]..q_bounds[g, m+1]
    and columns k_bounds[g, n]..k_bounds[g, n+1]. Blocks may be empty: after a cut, groups can have unequal
    numbers of non-empty blocks.
    """

    visible: np.ndarray  # bool (G, M, N)
    q_bounds: np.ndarray  # int64 (G, M + 1), from 0 to the number of queries, never falling
    k_bounds: np.ndarray  # int64 (G, N + 1)

    def __post_init__(self) -> None:
        for bounds, num_blocks in (
            (self.q_bounds, self.visible.shape[1]),
            (self.k_bounds, self.visible.shape[2]),
        ):
            shape = self.num_groups, num_blocks + 1
            if bounds.shape != shape or bounds[:, 0].any() or (np.diff(bounds, axis=1) < 0).any():
                raise ValueError(
                    f"bounds must be {shape}, begin at 0 and never fall; these are {bounds.shape}"
                )

    @property
    def num_groups(self) -> int:
        return self.visible.shape[0]

    @property
    def block_size(self) -> tuple[int, int] | None:
        """(q, k) size of all blocks, the last ones perhaps shorter; None if sizes vary."""
        sizes = []
        for bounds in (self.q_bounds, self.k_bounds):
            widths = np.diff(bounds, axis=1)
            if (
                widths.size == 0
                or (widths[:, :-1] != widths[0, 0]).any()
                or (widths[:, -1] > widths[0, 0]).any()
            ):
                return None
            sizes.append(int(widths[0, 0]))
        return sizes[0], sizes[1]

    def areas(self) -> np.ndarray:
        """Visible pairs of each group, (G,) int64."""
        rows = np.diff(self.q_bounds, axis=1)
        cols = np.diff(self.k_bounds, axis=1)
        # sums of integers up to that are exact
        exact = np.float32 if self.k_bounds.max(initial=0) < 1 << 24 else np.float64
        seen = [
            visible.astype(exact) @ width.astype(exact)
            for visible, width in zip(self.visible, cols, strict=True)
        ]
        return np.array(
            [row @ keys.astype(np.int64) for row, keys in zip(rows, seen, strict=True)], dtype=np.int64
        )

    def bands(self, group: int) -> np.ndarray:
        """Runs of neighbouring visible blocks of each block row as full bands, (n, 6) int64 in normal
        form."""
        visible, q, k = self.solid(group)
        step = np.diff(np.pad(visible, ((0, 0), (1, 1))).view(np.int8), axis=1)
        rows, start = np.nonzero(step == 1)
        _, end = np.nonzero(step == -1)  # both are in row-major order, so they pair up
        infinite = np.full(len(rows), INF, dtype=np.int64)
        return np.stack([q[rows], q[rows + 1], k[start], k[end], -infinite, infinite], axis=1)

    def row_runs(self, group: int) -> np.ndarray:
        """Number of runs of visible keys in each row, for each non-empty block row, (≤ M,) int64."""
        visible = self.solid(group)[0]
        begins = visible[:, 1:] > visible[:, :-1]
        # bytes add up quickest
        return visible[:, :1].sum(axis=1) + begins.view(np.uint8).sum(axis=1, dtype=np.uint32)

    def col_runs(self, group: int) -> np.ndarray:
        """Number of runs of rows that see each column, for each non-empty block column, (≤ N,) int64."""
        visible = self.solid(group)[0]
        begins = visible[1:] > visible[:-1]
        return visible[:1].sum(axis=0) + begins.view(np.uint8).sum(axis=0, dtype=np.uint32)

    def move(self, dq: int, dk: int, seqlen_q: int, seqlen_k: int) -> "BlockGrid":
        """The grid moved by dq rows and dk columns, then cut to seqlen_q × seqlen_k; positions from outside
        are hidden."""
        moved = np.clip(self.q_bounds + dq, 0, seqlen_q), np.clip(self.k_bounds + dk, 0, seqlen_k)
        visible, *bounds = _without_empty(self.visible, *moved)
        q_bounds, k_bounds = (
            np.pad(part, ((0, 0), (1, 1)), constant_values=((0, 0), (0, length)))
            for part, length in zip(bounds, (seqlen_q, seqlen_k), strict=True)
        )
        return BlockGrid(*_without_empty(np.pad(visible, ((0, 0), (1, 1), (1, 1))), q_bounds, k_bounds))

    def stripe(self, q_rank: int, k_rank: int, world: int) -> "BlockGrid":
        """The pairs (q_rank + world·i, k_rank + world·j), as blocks over (i, j)."""
        striped = -((q_rank - self.q_bounds) // world), -((k_rank - self.k_bounds) // world)
        return BlockGrid(*_without_empty(self.visible, *striped))

    def without_empty(self) -> "BlockGrid":
        """The same without rows and columns of blocks that are empty in all groups."""
        return BlockGrid(*_without_empty(self.visible, self.q_bounds, self.k_bounds))

    def select(self, start: int, end: int) -> "BlockGrid":
        """The grid of head groups start..end."""
        return BlockGrid(self.visible[start:end], self.q_bounds[start:end], self.k_bounds[start:end])

    def solid(self, group: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """`visible` (M, N) and both bounds of one group, without its empty blocks."""
        if self._is_solid:
            return self.visible[group], self.q_bounds[group], self.k_bounds[group]
        only = slice(group, group + 1)
        visible, q_bounds, k_bounds = _without_empty(
            self.visible[only], self.q_bounds[only], self.k_bounds[only]
        )
        return visible[0], q_bounds[0], k_bounds[0]

    @cached_property
    def _is_solid(self) -> bool:
        """True if no block of any group is empty."""
        return bool(np.diff(self.q_bounds, axis=1).all() and np.diff(self.k_bounds, axis=1).all())


def _without_empty(
    visible: np.ndarray, q_bounds: np.ndarray, k_bounds: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same without block rows and columns that are empty in all groups."""
    rows, cols = (np.diff(bounds, axis=1).any(axis=0) for bounds in (q_bounds, k_bounds))
    if rows.all() and cols.all():
        return visible, q_bounds, k_bounds
    return (
        visible[:, rows][:, :, cols],
        q_bounds[:, np.append(True, rows)],
        k_bounds[:, np.append(True, cols)],
    )


class GridBands(Sequence[np.ndarray]):
    """The bands of a block grid's groups, each made when it is accessed."""

    def __init__(self, grid: BlockGrid) -> None:
        self._grid = grid

    def __len__(self) -> int:
        return self._grid.num_groups

    @overload
    def __getitem__(self, group: int) -> np.ndarray: ...
    @overload
    def __getitem__(self, group: slice) -> tuple[np.ndarray, ...]: ...
    def __getitem__(self, group: int | slice) -> np.ndarray | tuple[np.ndarray, ...]:
        if isinstance(group, slice):
            return tuple(self[number] for number in range(len(self))[group])
        return self._grid.bands(range(len(self))[group])
