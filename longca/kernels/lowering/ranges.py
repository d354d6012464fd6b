"""Ranges of indices, line by line: what interval and tile forms are made of."""

from dataclasses import dataclass

import numpy as np


def expand(starts: np.ndarray, lengths: np.ndarray, dtype: type = np.int64) -> np.ndarray:
    """arange(start, start + length) of each range, one behind the other."""
    ends = np.cumsum(lengths)
    joined = np.arange(ends[-1] if len(ends) else 0, dtype=dtype)
    joined += np.repeat((starts - (ends - lengths)).astype(dtype), lengths)
    return joined


def runs(visible: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(row, first, behind) of each run of True in the rows of a bool matrix, in row-major order."""
    step = np.diff(np.pad(visible, ((0, 0), (1, 1))).view(np.int8), axis=1)
    rows, first = np.nonzero(step == 1)
    _, behind = np.nonzero(step == -1)  # each run has one start and one end, both in row-major order
    return rows, first, behind


@dataclass(frozen=True, eq=False)
class Csr:
    """Indices of each line, ascending: line l has `indices[offsets[l]:offsets[l + 1]]`."""

    offsets: np.ndarray  # int64 (lines + 1,)
    indices: np.ndarray  # int32 (entries,)

    def padded(self, width: int) -> tuple[np.ndarray, np.ndarray]:
        """(counts, index) of every line: int32 (lines,) and (lines, width), unused slots 0. `width` must hold the longest."""
        counts = np.diff(self.offsets).astype(np.int32)
        return counts, fill(counts, self.indices, width)


def fill(counts: np.ndarray, values: np.ndarray, width: int, unused: int = 0) -> np.ndarray:
    """Rows of `counts[r]` successive values each, as an int32 (rows, width) matrix."""
    table = np.full((len(counts), width), unused, dtype=np.int32)
    if len(counts) and (counts == width).all():
        table[:] = values.reshape(table.shape)
    else:
        table[np.arange(width) < counts[:, None]] = values
    return table


@dataclass(frozen=True, eq=False)
class Runs:
    """The same set as ranges: line l has every index in [first, behind) of `bounds[offsets[l]:offsets[l + 1]]`."""

    offsets: np.ndarray  # int64 (lines + 1,)
    bounds: np.ndarray  # int32 (runs, 2): first, behind; ascending in a line, never touching

    @staticmethod
    def of(lines: np.ndarray, first: np.ndarray, behind: np.ndarray, num_lines: int) -> "Runs":
        """From runs sorted by line, then by start."""
        offsets = np.searchsorted(lines, np.arange(num_lines + 1)).astype(np.int64)
        return Runs(offsets, np.stack([first, behind], axis=1).astype(np.int32))

    @property
    def total(self) -> int:
        """Number of indices of all lines."""
        return int((self.bounds[:, 1] - self.bounds[:, 0]).sum(dtype=np.int64))

    def expand(self) -> Csr:
        """O(indices) time and memory."""
        assert self.total < 1 << 31, "int32 offsets inside `expand`"
        lengths = self.bounds[:, 1] - self.bounds[:, 0]
        behind = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        return Csr(behind[self.offsets], expand(self.bounds[:, 0], lengths, np.int32))
