"""Ranks as a ring of head groups: the two dimensions of a hybrid strategy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from longca.cp.placement import Placement
from longca.cp.split import even_ranges


@dataclass(frozen=True)
class Mesh:
    """`ring` × `heads` ranks. Those that divide heads among them are neighbours, so that all-to-alls stay within a node.

    A plan is made for `ring` ranks. The tokens of each are divided evenly, in their order, among the ranks of its group.
    """

    ring: int
    heads: int = 1

    @property
    def world(self) -> int:
        return self.ring * self.heads

    def of(self, rank: int) -> tuple[int, int]:
        """(its rank in the plan, its number in the group)."""
        return divmod(rank, self.heads)

    def group(self, rank: int) -> range:
        """The ranks with which it divides heads."""
        first = rank // self.heads * self.heads
        return range(first, first + self.heads)

    def ring_of(self, rank: int) -> range:
        """The ranks with which it runs a plan, in the plan's order."""
        return range(rank % self.heads, self.world, self.heads)

    def tokens(self, placement: Placement, ring_rank: int) -> tuple[range, ...]:
        """What each rank of a group holds, as indices into the tokens of its rank in the plan."""
        return even_ranges(int(placement.num_tokens[ring_rank]), self.heads)

    def positions(self, placement: Placement, rank: int) -> np.ndarray:
        """Position ids of what a rank holds, int64."""
        ring_rank, number = self.of(rank)
        mine = self.tokens(placement, ring_rank)[number]
        return placement.positions(ring_rank)[mine.start:mine.stop]
