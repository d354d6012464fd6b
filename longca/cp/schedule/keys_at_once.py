"""All keys of a rank in one kernel call, in the order of the sequence, as backward of a gather may have them,
or of a ring of two ranks, which exchanges keys once as well.

A gather's forward computes with a rank's own keys while the others' arrive. In backward that costs more: two
calls have two tails, each reads all rows, and gradients of queries are added up in memory. In one call keys
also lie in the order of the sequence, so that one pass can make all gradients. The price is that all keys
must have arrived before the kernel begins.

    layout of a gather    own keys, then those of the other ranks, rank after rank
    `KeyRuns`             runs of that layout that are neighbours in the sequence, from the first token on

Shapes: L own keys, R received ones, n runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from longca.cp.partition.sharding import ChunkedSharding
from longca.cp.schedule.planner import INTRA_NODE_BYTES_PER_S, step_masks
from longca.cp.schedule.ring_and_gather import Gather
from longca.masks import Mask
from longca.masks.band import cut, shift

if TYPE_CHECKING:
    from collections.abc import Iterator

    from longca.core import CallSpec
    from longca.cp.partition.mask_partition import KvRange
    from longca.cp.schedule.plan import Plan
    from longca.kernels import Kernel

RECEIVED = 1  # the step whose keys are received
# Measured with 2 and 4 ranks. More ranks wait for keys of more owners, on several nodes for slow ones.
MOST_RANKS = 4


@dataclass(frozen=True, eq=False)
class KeyRuns:
    """The keys of one rank, in the order of the sequence."""

    num_own: int
    starts: np.ndarray
    """(n,) in the layout of the gather; a run has own keys or received ones"""
    ends: np.ndarray

    @classmethod
    def of(cls, plan: Plan, rank: int) -> KeyRuns:
        """The runs of a rank, whose plan is on chunks of the sequence."""
        sharding = plan.sharding
        assert isinstance(sharding, ChunkedSharding)
        num_own = int(sharding.num_tokens[rank])
        ranges = np.array(_layout(plan, rank), dtype=np.int64)
        lengths = ranges[:, 2] - ranges[:, 1]
        # pieces of ranges that lie in one chunk of their owner
        owner, offset, token = sharding.owner, sharding.offset, sharding.edges[:-1]
        by_owner = np.lexsort([offset, owner])
        key = owner[by_owner] * sharding.seqlen + offset[by_owner]
        first = np.searchsorted(key, ranges[:, 0] * sharding.seqlen + ranges[:, 1], side="right") - 1
        last = np.searchsorted(key, ranges[:, 0] * sharding.seqlen + ranges[:, 2], side="left")
        counts = np.maximum(last - first, 0)
        number = np.repeat(np.arange(len(ranges)), counts)
        chunk = by_owner[np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts - first, counts)]
        begin = np.maximum(ranges[number, 1], offset[chunk])
        end = np.minimum(ranges[number, 2], offset[chunk] + np.diff(sharding.edges)[chunk])
        start = (np.cumsum(lengths) - lengths)[number] + begin - ranges[number, 1]
        order = np.argsort(token[chunk] + begin - offset[chunk])
        start = start[order]
        stop = start + (end - begin)[order]
        new = np.append(True, (start[1:] != stop[:-1]) | (start[1:] == num_own))
        return cls(num_own, start[new], stop[np.append(new[1:], True)])

    @cached_property
    def num_keys(self) -> int:
        return int((self.ends - self.starts).sum())

    @cached_property
    def columns(self) -> np.ndarray:
        """(n,) the first column of each run in the call."""
        lengths = self.ends - self.starts
        return np.cumsum(lengths) - lengths

    def in_layout(self, *, own: bool) -> list[tuple[int, int]]:
        """(first column, end) in the call of the runs of own keys, or of received ones, in the order of the
        gather's layout."""
        runs = np.argsort(self.starts)
        runs = runs[(self.starts[runs] < self.num_own) == own]
        return [
            (int(self.columns[run]), int(self.columns[run] + self.ends[run] - self.starts[run]))
            for run in runs
        ]

    def mask(self, plan: Plan, rank: int) -> Mask:
        """The mask of all queries of the rank and these keys."""
        num_rows = int(plan.sharding.num_tokens[rank])
        unsorted = plan.partition.local_mask(rank, _layout(plan, rank))
        groups = tuple(np.concatenate(list(self._moved(bands, num_rows))) for bands in unsorted.groups)
        return Mask(num_rows, self.num_keys, groups, name=unsorted.name)

    def _moved(self, bands: np.ndarray, num_rows: int) -> Iterator[np.ndarray]:
        for start, end, column in zip(
            self.starts.tolist(), self.ends.tolist(), self.columns.tolist(), strict=True
        ):
            yield shift(cut(bands, (0, num_rows), (start, end)), 0, column - start)


def _layout(plan: Plan, rank: int) -> list[KvRange]:
    """The ranges of own keys and of received ones, in the layout of a gather."""
    return [(rank, 0, int(plan.sharding.num_tokens[rank])), *plan.needed_kv(rank, RECEIVED)]


def computes_at_once(plan: Plan, call: CallSpec, kernel: Kernel) -> bool:
    """True if backward is predicted to be faster with all keys in one call, on the rank with most pairs. It
    is the same on all ranks.

    Args:
        call: a backward call of the heads that each rank has.
    """
    if plan.world > MOST_RANKS or not has_runs(plan) or not plan.received_kv.any():
        return False
    rank = int(plan.step_areas.sum(axis=1).argmax())
    at_once = kernel.predicted_backward_us(call, KeyRuns.of(plan, rank).mask(plan, rank))
    if at_once is None:
        return False
    steps = step_masks(plan, rank, merging=kernel.merges).values()
    # masks of one kind, so each has a time as well
    in_steps = [kernel.predicted_backward_us(call, mask) or 0.0 for _, _, mask in steps]
    kv_bytes = 2 * call.num_kv_heads * call.head_dim * call.elem_bytes
    arrival_us = int(plan.received_kv.max()) * kv_bytes / INTRA_NODE_BYTES_PER_S * 1e6
    return at_once + arrival_us < sum(in_steps)


def has_runs(plan: Plan) -> bool:
    """True if all keys of a rank can be at once: of a gather in one stage, or a ring of two, on chunks of the
    sequence, under a mask of bands."""
    is_one_exchange = plan.num_steps == 2 and plan.schedule != Gather(0)
    return is_one_exchange and isinstance(plan.sharding, ChunkedSharding) and plan.partition.mask.grid is None
