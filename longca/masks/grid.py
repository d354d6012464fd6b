"""Block masks: chosen (q-block, k-block) pairs, per head group. A compact form of many full bands."""

from dataclasses import dataclass

import numpy as np

from longca.masks.band import INF


@dataclass(frozen=True, eq=False)
class BlockGrid:
    """Which blocks are visible.

    Shapes: G head groups, M q-blocks, N k-blocks. Block (m, n) of group g covers rows q_bounds[g, m]..q_bounds[g, m+1]
    and columns k_bounds[g, n]..k_bounds[g, n+1]. A block may be empty: cutting can leave groups unequal numbers of them.
    """

    visible: np.ndarray  # bool (G, M, N)
    q_bounds: np.ndarray  # int64 (G, M + 1), from 0 to the number of queries, never falling
    k_bounds: np.ndarray  # int64 (G, N + 1)

    def __post_init__(self) -> None:
        groups, num_q, num_k = self.visible.shape
        if self.q_bounds.shape != (groups, num_q + 1) or self.k_bounds.shape != (groups, num_k + 1):
            raise ValueError(f"{self.visible.shape} blocks do not go with bounds {self.q_bounds.shape}, {self.k_bounds.shape}")

    @property
    def num_groups(self) -> int:
        return self.visible.shape[0]

    @property
    def block_size(self) -> tuple[int, int] | None:
        """(q, k) size of all blocks, the last ones perhaps shorter; None if sizes vary."""
        sizes = []
        for bounds in (self.q_bounds, self.k_bounds):
            widths = np.diff(bounds, axis=1)
            if widths.size == 0 or (widths[:, :-1] != widths[0, 0]).any() or (widths[:, -1] > widths[0, 0]).any():
                return None
            sizes.append(int(widths[0, 0]))
        return sizes[0], sizes[1]

    def areas(self) -> np.ndarray:
        """Visible pairs of each group, (G,) int64."""
        rows, cols = np.diff(self.q_bounds, axis=1), np.diff(self.k_bounds, axis=1)
        exact = np.float32 if self.k_bounds.max(initial=0) < 1 << 24 else np.float64  # whole sums up to that are exact
        seen = [visible.astype(exact) @ width.astype(exact) for visible, width in zip(self.visible, cols, strict=True)]
        return np.array([row @ keys.astype(np.int64) for row, keys in zip(rows, seen, strict=True)], dtype=np.int64)

    def bands(self, group: int) -> np.ndarray:
        """Runs of neighbouring visible blocks of each block row as full bands, (n, 6) int64 in normal form."""
        visible, q, k = self.solid(group)
        step = np.diff(np.pad(visible, ((0, 0), (1, 1))).view(np.int8), axis=1)
        rows, first = np.nonzero(step == 1)
        _, behind = np.nonzero(step == -1)  # both are in row-major order, so they pair up
        infinite = np.full(len(rows), INF, dtype=np.int64)
        return np.stack([q[rows], q[rows + 1], k[first], k[behind], -infinite, infinite], axis=1)

    def row_runs(self, group: int) -> np.ndarray:
        """Runs of visible keys that each row of a block row sees, for each block row with rows, (≤ M,) int64."""
        visible = self.solid(group)[0]
        begins = visible[:, 1:] > visible[:, :-1]
        return visible[:, :1].sum(axis=1) + begins.view(np.uint8).sum(axis=1, dtype=np.uint32)  # bytes add up quickest

    def col_runs(self, group: int) -> np.ndarray:
        """Runs of rows that see each column of a block column, for each block column with columns, (≤ N,) int64."""
        visible = self.solid(group)[0]
        begins = visible[1:] > visible[:-1]
        return visible[:1].sum(axis=0) + begins.view(np.uint8).sum(axis=0, dtype=np.uint32)

    def crop(self, rows: tuple[int, int], cols: tuple[int, int]) -> "BlockGrid":
        """The part inside rows × cols, in local coordinates."""
        return self._rebound(np.clip(self.q_bounds, *rows) - rows[0], np.clip(self.k_bounds, *cols) - cols[0])

    def place(self, q0: int, k0: int, seqlen_q: int, seqlen_k: int) -> "BlockGrid":
        """This grid as the part from (q0, k0) on of a larger one, where nothing else is visible."""
        ends = np.array([[0], [seqlen_q], [seqlen_k]]).repeat(self.num_groups, axis=1)[:, :, None]
        larger = BlockGrid(np.pad(self.visible, ((0, 0), (1, 1), (1, 1))),
                           np.concatenate([ends[0], self.q_bounds + q0, ends[1]], axis=1),
                           np.concatenate([ends[0], self.k_bounds + k0, ends[2]], axis=1))
        return larger._rebound(larger.q_bounds, larger.k_bounds)

    def stripe(self, q_rank: int, k_rank: int, world: int) -> "BlockGrid":
        """The pairs (q_rank + world·i, k_rank + world·j), as blocks over (i, j)."""
        return self._rebound(-((q_rank - self.q_bounds) // world), -((k_rank - self.k_bounds) // world))

    def select(self, first: int, last: int) -> "BlockGrid":
        """Head groups first..last only."""
        return BlockGrid(self.visible[first:last], self.q_bounds[first:last], self.k_bounds[first:last])

    def _rebound(self, q_bounds: np.ndarray, k_bounds: np.ndarray) -> "BlockGrid":
        """The same choice over other bounds; blocks that are empty in all groups are left out."""
        rows, cols = (np.diff(bounds, axis=1).any(axis=0) for bounds in (q_bounds, k_bounds))
        visible = self.visible[:, rows][:, :, cols]
        return BlockGrid(visible, q_bounds[:, np.append(True, rows)], k_bounds[:, np.append(True, cols)])

    def solid(self, group: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Visible blocks and bounds of one group without its empty blocks."""
        q, k = self.q_bounds[group], self.k_bounds[group]
        rows, cols = np.diff(q) > 0, np.diff(k) > 0
        if rows.all() and cols.all():
            return self.visible[group], q, k
        return self.visible[group][rows][:, cols], q[np.append(True, rows)], k[np.append(True, cols)]
