"""Block masks: chosen (q-block, k-block) pairs, per head group. A compact form of many full bands."""

from dataclasses import dataclass

import numpy as np

from longca.masks.band import INF


@dataclass(frozen=True, eq=False)
class BlockGrid:
    """Which blocks are visible.

    Shapes: G head groups, M q-blocks, N k-blocks. Block (m, n) of group g covers rows q_bounds[g, m]..q_bounds[g, m+1]
    and columns k_bounds[g, n]..k_bounds[g, n+1].
    """

    visible: np.ndarray  # bool (G, M, N)
    q_bounds: np.ndarray  # int64 (G, M + 1), from 0 to the number of queries
    k_bounds: np.ndarray  # int64 (G, N + 1)

    @property
    def num_groups(self) -> int:
        return self.visible.shape[0]

    @property
    def block_size(self) -> tuple[int, int] | None:
        """(q, k) size of all blocks, the last ones perhaps shorter; None if sizes vary."""
        sizes = []
        for bounds in (self.q_bounds, self.k_bounds):
            widths = np.diff(bounds, axis=1)
            if (widths[:, :-1] != widths[0, 0]).any() or (widths[:, -1] > widths[0, 0]).any():
                return None
            sizes.append(int(widths[0, 0]))
        return sizes[0], sizes[1]

    def areas(self) -> np.ndarray:
        """Visible pairs of each group, (G,) int64."""
        rows, cols = np.diff(self.q_bounds, axis=1), np.diff(self.k_bounds, axis=1)
        seen = np.matmul(self.visible.astype(np.float64), cols[:, :, None].astype(np.float64))[:, :, 0]  # exact below 2^53
        return (rows * seen.astype(np.int64)).sum(axis=1)

    def bands(self, group: int) -> np.ndarray:
        """Runs of neighbouring visible blocks of each block row as full bands, (n, 6) int64."""
        padded = np.pad(self.visible[group], ((0, 0), (1, 1))).astype(np.int8)
        step = np.diff(padded, axis=1)
        rows, first = np.nonzero(step == 1)
        _, behind = np.nonzero(step == -1)  # both are in row-major order, so they pair up
        q, k = self.q_bounds[group], self.k_bounds[group]
        infinite = np.full(len(rows), INF, dtype=np.int64)
        return np.stack([q[rows], q[rows + 1], k[first], k[behind], -infinite, infinite], axis=1)
