"""Ranks as a ring of head groups: the two dimensions of a hybrid strategy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from longca.cp.partition.sharding import Sharding
from longca.cp.partition.split import even_ranges

RANKS_PER_NODE = 8  # of the machines that these meshes are for


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

    def tokens(self, placement: Sharding, ring_rank: int) -> tuple[range, ...]:
        """What each rank of a group holds, as indices into the tokens of its rank in the plan."""
        return even_ranges(int(placement.num_tokens[ring_rank]), self.heads)

    def positions(self, placement: Sharding, rank: int) -> np.ndarray:
        """Position ids of what a rank holds, int64."""
        ring_rank, number = self.of(rank)
        mine = self.tokens(placement, ring_rank)[number]
        return placement.positions(ring_rank)[mine.start:mine.stop]


def hybrid(world: int, num_kv_heads: int) -> Mesh:
    """A ring of groups that divide heads.

    As many ranks in a group as divide the KV heads without copies and fit into a node, of those that leave a ring of two or more. Where
    there are none such, heads alone if they divide, else the ring alone.
    """
    fit = [heads for heads in _divisors(world) if num_kv_heads % heads == 0 and heads <= RANKS_PER_NODE]
    mixed = [heads for heads in fit if 1 < heads < world]
    heads = max(mixed or fit)
    return Mesh(world // heads, heads)


def double_ring(world: int, num_kv_heads: int) -> Mesh:
    """A ring of windows, and groups that divide heads: as many heads apart as leave a ring with windows in a node.

    Rings of two, three or another prime number of ranks have no windows: they are single ones.
    """
    fit = [heads for heads in _divisors(world) if num_kv_heads % heads == 0 and windowed(Mesh(world // heads, heads)) > 1]
    heads = max(fit, default=1)
    return Mesh(world // heads, heads)


def windowed(mesh: Mesh) -> int:
    """Ranks of an inner ring: the most that, with their groups, fit into a node and leave two windows or more; 1 where none do."""
    most = RANKS_PER_NODE // mesh.heads
    return max((window for window in _divisors(mesh.ring) if window <= most and window < mesh.ring), default=1)


def _divisors(number: int) -> list[int]:
    return [part for part in range(1, number + 1) if number % part == 0]
