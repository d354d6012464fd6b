"""The permutation of tokens between ranks that a strategy needs. It is timed apart: it happens once a batch,
not once a layer."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from longca.cp.partition.sharding import even_ranges

if TYPE_CHECKING:
    import torch

    from longca.cp.comm.backend import Comm

REPEATS = 3


class Permutation:
    """Moves tokens from contiguous shards, as a data loader gives them, to the ranks where a strategy wants
    them."""

    def __init__(self, positions: Sequence[np.ndarray], rank: int) -> None:
        """
        Args:
            positions: for each rank, the positions of its tokens, in its order.

        Raises:
            ValueError: some token is on no rank or on several.
        """
        total = sum(map(len, positions))
        if not np.array_equal(np.sort(np.concatenate(positions)), np.arange(total)):
            raise ValueError("the ranks' positions are not each token once")
        parts = even_ranges(total, len(positions))
        mine = self.mine = parts[rank]
        wanted = [_inside(each, mine) for each in positions]
        self.is_identity = all(
            np.array_equal(each, np.arange(part.start, part.stop))
            for each, part in zip(positions, parts, strict=True)
        )
        self._leaving = np.concatenate(
            [each[chosen] - mine.start for each, chosen in zip(positions, wanted, strict=True)]
        )
        self._num_leaving = [len(chosen) for chosen in wanted]
        arriving = [_inside(positions[rank], part) for part in parts]
        self._places = np.concatenate(arriving)
        self._num_arriving = [len(chosen) for chosen in arriving]

    def apply(self, x: torch.Tensor, comm: Comm) -> torch.Tensor:
        """Rows of this rank's contiguous shard → rows of its shard in the strategy."""
        import torch

        row = x.shape[1:].numel()
        leaving, places = (torch.from_numpy(index).to(x.device) for index in (self._leaving, self._places))
        sizes, arriving = (
            [num * row for num in of_ranks] for of_ranks in (self._num_leaving, self._num_arriving)
        )
        received = comm.all_to_all(x[leaving].reshape(-1), sizes, arriving)
        rows = x.new_empty(len(self._places), *x.shape[1:])
        rows[places] = received.view(len(self._places), *x.shape[1:])
        return rows

    def time_ms(self, tensors: Sequence[torch.Tensor], comm: Comm) -> float:
        """Median time in ms to permute all tensors one after the other on this rank; 0 for the identity. All
        ranks must call this."""
        if self.is_identity:
            return 0.0
        times_ms = []
        for _ in range(1 + REPEATS):
            comm.any(False)  # hosts wait for each other
            start = time.perf_counter()
            for x in tensors:
                self.apply(x, comm)
            _synchronize(tensors[0])
            times_ms.append((time.perf_counter() - start) * 1e3)
        return statistics.median(times_ms[1:])


def _inside(positions: np.ndarray, part: range) -> np.ndarray:
    """Indices in `positions` of the values inside a range."""
    return np.flatnonzero((positions >= part.start) & (positions < part.stop))


def _synchronize(x: torch.Tensor) -> None:
    import torch

    if x.device.type == "cuda":
        torch.cuda.synchronize(x.device)
