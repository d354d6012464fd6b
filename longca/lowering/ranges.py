"""Ranges of indices, line by line: the basis of interval and tile formats."""

from dataclasses import dataclass

import numpy as np


def turned(matrix: np.ndarray) -> np.ndarray:
    """The transpose of a matrix of bytes, contiguous. It is computed in strips that fit a cache line, which
    is faster than one step."""
    out = np.empty(matrix.shape[::-1], dtype=matrix.dtype)
    for row in range(0, len(matrix), 16):
        out[:, row : row + 16] = matrix[row : row + 16].T
    return out


def runs(visible: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(row, start, end) of each run of True in the rows of a bool matrix, in row-major order."""
    padded = np.zeros((visible.shape[0], visible.shape[1] + 2), dtype=bool)
    padded[:, 1:-1] = visible
    # starts and ends alternate, since each run stays in its row
    changes = np.flatnonzero(padded[:, 1:] != padded[:, :-1])
    rows, start = np.divmod(changes[0::2], visible.shape[1] + 1)
    return rows, start, start + (changes[1::2] - changes[0::2])


@dataclass(frozen=True, eq=False)
class Csr:
    """A set of indices for each line, ascending: line l has `indices[offsets[l]:offsets[l + 1]]`."""

    offsets: np.ndarray  # int64 (lines + 1,)
    indices: np.ndarray  # int32 (entries,)


def fill(counts: np.ndarray, values: np.ndarray, width: int, unused: int = 0) -> np.ndarray:
    """An int32 (rows, width) matrix. Row r contains the next `counts[r]` elements of `values`, then
    `unused`."""
    table = np.full((len(counts), width), unused, dtype=np.int32)
    if len(counts) and (counts == width).all():
        table[:] = values.reshape(table.shape)
    else:
        table[np.arange(width) < counts[:, None]] = values
    return table


@dataclass(frozen=True, eq=False)
class Runs:
    """The same set as ranges: line l has every index in [start, end) of `bounds[offsets[l]:offsets[l +
    1]]`."""

    offsets: np.ndarray  # int64 (lines + 1,)
    bounds: np.ndarray  # int32 (runs, 2): start, end; ascending in a line, never touching

    @staticmethod
    def of(lines: np.ndarray, start: np.ndarray, end: np.ndarray, num_lines: int) -> "Runs":
        """Runs from (line, start, end) of each, sorted by line, then by start."""
        offsets = np.searchsorted(lines, np.arange(num_lines + 1)).astype(np.int64)
        return Runs(offsets, np.stack([start, end], axis=1).astype(np.int32))

    @property
    def lines(self) -> np.ndarray:
        """The line of each run, int64."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    @property
    def counts(self) -> np.ndarray:
        """Number of indices of each line, int32."""
        upto = np.concatenate([[0], np.cumsum(self.bounds[:, 1] - self.bounds[:, 0], dtype=np.int64)])
        return np.diff(upto[self.offsets]).astype(np.int32)

    @property
    def total(self) -> int:
        """Number of indices of all lines."""
        return int((self.bounds[:, 1] - self.bounds[:, 0]).sum(dtype=np.int64))

    def expand(self) -> Csr:
        """The same sets as lists of indices, in O(indices) time and memory."""
        start = self.bounds[:, 0]
        lengths = self.bounds[:, 1] - self.bounds[:, 0]
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        assert offsets[-1] < 1 << 31, "places must fit int32 below"
        indices = np.arange(offsets[-1], dtype=np.int32)
        indices += np.repeat(start - offsets[:-1].astype(np.int32), lengths)
        return Csr(offsets[self.offsets], indices)
