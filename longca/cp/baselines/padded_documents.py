"""Documents padded so that they divide: the sharding of the study's own rings (arXiv 2510.17896).

Each document is cut into 2P equal chunks, the last ones padded; rank r holds the r-th and the r-th from the end of every document,
one document after the other. So every rank has the same number of rows of every document, padding included, and of a causal
document the same area. Shapes: P ranks, N documents, R rows of a rank with padding, L tokens of a rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from longca.masks import band
from longca.masks.mask import Mask
from longca.masks.ragged import spread

BOTH = (0, 1)


@dataclass(frozen=True, eq=False)
class Held:
    """What a rank holds of some of its chunks, without the padding."""

    positions: np.ndarray
    """of its tokens in the sequence, (L,) int64, by document"""
    rows: np.ndarray
    """where they lie among the rank's padded rows, (L,)"""
    lengths: np.ndarray
    """tokens of each document, (N,)"""
    ends: np.ndarray
    """tokens of each document from its beginning to the last that is held, (N,)"""


class PaddedDocuments:
    """
    Args:
        bounds: document n is tokens bounds[n]..bounds[n + 1].
    """

    def __init__(self, bounds: np.ndarray, world: int) -> None:
        self.bounds, self.world = bounds, world
        self._chunk = -(-np.diff(bounds) // (2 * world))
        self._before = 2 * (np.cumsum(self._chunk) - self._chunk)
        self.num_rows = int(2 * self._chunk.sum())
        """R, of every rank"""

    @cached_property
    def num_padding(self) -> int:
        """Rows of all ranks that hold no token."""
        return self.num_rows * self.world - int(self.bounds[-1])

    def held(self, rank: int, halves: tuple[int, ...] = BOTH) -> Held:
        """By a rank, of the first (0) chunk of each of its documents, the second (1), or both."""
        numbers = np.array([(rank, 2 * self.world - 1 - rank)[half] for half in halves])
        start, behind = self.bounds[:-1, None], self.bounds[1:, None]
        first = np.minimum(start + numbers * self._chunk[:, None], behind)
        last = np.minimum(first + self._chunk[:, None], behind)
        chunk, positions = spread(first.ravel(), last.ravel())
        offset = self._before[:, None] + np.array(halves) * self._chunk[:, None] - first
        lengths = last - first
        ends = np.where(lengths > 0, last - start, 0).max(axis=1)
        return Held(positions, positions + offset.ravel()[chunk], lengths.sum(axis=1), ends)

    def rows_of(self, documents: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(rank, row there) of the first lengths[n] tokens of documents[n], one document after the other."""
        document, inside = spread(np.zeros_like(lengths), lengths)
        document = documents[document]
        number, offset = np.divmod(inside, self._chunk[document])
        second = number >= self.world
        rank = np.where(second, 2 * self.world - 1 - number, number)
        return rank, self._before[document] + second * self._chunk[document] + offset


def full_mask(q_lengths: np.ndarray, k_lengths: np.ndarray) -> Mask:
    """Queries of a document see all keys of it that are there; lengths are of each document."""
    return Mask(int(q_lengths.sum()), int(k_lengths.sum()), (band.make(*_edges(q_lengths), *_edges(k_lengths)),))


def causal_mask(q_lengths: np.ndarray, k_lengths: np.ndarray) -> Mask:
    """As `full_mask`, but the last query of a document sees its last key, the one before one less, and so on."""
    q0, q1 = _edges(q_lengths)
    k0, k1 = _edges(k_lengths)
    return Mask(int(q_lengths.sum()), int(k_lengths.sum()), (band.make(q0, q1, k0, k1, hi=k1 - q1),))


def _edges(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    behind = np.cumsum(lengths)
    return behind - lengths, behind
