"""The mesh of ranks: a ring of head groups, the two dimensions of a hybrid strategy.

A mesh of ring = 3 and heads = 2. Ranks of a row divide heads (all-to-all); ranks of a column run a plan (ring
or gather):

                 head rank 0   head rank 1
    ring rank 0      rank 0  ───  rank 1        group of rank 1: 0, 1
                       │            │
    ring rank 1      rank 2  ───  rank 3        ring of rank 1: 1, 3, 5
                       │            │
    ring rank 2      rank 4  ───  rank 5
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from longca.cp.partition.sharding import Sharding, even_ranges

RANKS_PER_NODE = 8  # GPUs of one node


@dataclass(frozen=True)
class Mesh:
    """A mesh of `ring` × `heads` ranks. Ranks of a head group are neighbours, so that their all-to-alls stay
    within a node.

    A plan has `ring` ranks. The tokens of each plan rank are split evenly, in order, among the ranks of its
    group.
    """

    ring: int
    heads: int = 1

    @property
    def world(self) -> int:
        return self.ring * self.heads

    def of(self, rank: int) -> tuple[int, int]:
        """(ring rank, head rank): the rank's position in its plan and in its head group."""
        return divmod(rank, self.heads)

    def group(self, rank: int) -> range:
        """The head group of a rank: the ranks that split heads with it."""
        start = rank // self.heads * self.heads
        return range(start, start + self.heads)

    def ring_of(self, rank: int) -> range:
        """The ring of a rank: the ranks of its plan, in the plan's order."""
        return range(rank % self.heads, self.world, self.heads)

    def tokens(self, sharding: Sharding, ring_rank: int) -> tuple[range, ...]:
        """The tokens of each rank of a head group, as local indices of its ring rank."""
        return even_ranges(int(sharding.num_tokens[ring_rank]), self.heads)

    def positions(self, sharding: Sharding, rank: int) -> np.ndarray:
        """Position ids of a rank's tokens, int64."""
        ring_rank, number = self.of(rank)
        mine = self.tokens(sharding, ring_rank)[number]
        return sharding.positions(ring_rank)[mine.start : mine.stop]


def head_groups(world: int, num_kv_heads: int, heads: int) -> Mesh:
    """The mesh with head groups of this size.

    Raises:
        ValueError: the size does not divide the number of ranks or of KV heads.
    """
    if world % heads:
        raise ValueError(f"{world} ranks are no whole number of head groups of {heads}")
    if num_kv_heads % heads:
        raise ValueError(
            f"{num_kv_heads} KV heads cannot be divided evenly among {heads} ranks of a head group"
        )
    return Mesh(world // heads, heads)


def hybrid(world: int, num_kv_heads: int) -> Mesh:
    """The mesh of USP: a ring of head groups.

    A group is as large as possible such that it splits the KV heads without copies, fits into a node and
    leaves a ring of two or more. Without such a group, all ranks split heads if possible, else all form a
    ring.
    """
    fit = [heads for heads in _divisors(world) if num_kv_heads % heads == 0 and heads <= RANKS_PER_NODE]
    mixed = [heads for heads in fit if 1 < heads < world]
    heads = max(mixed or fit)
    return Mesh(world // heads, heads)


def double_ring(world: int, num_kv_heads: int) -> Mesh:
    """The mesh of LoongTrain: a ring of head groups, divided into windows.

    A group is as large as possible such that it splits the KV heads without copies and leaves a ring with
    windows inside a node. Rings with a prime number of ranks have no windows and are single rings.
    """
    fit = [
        heads
        for heads in _divisors(world)
        if num_kv_heads % heads == 0 and windowed(Mesh(world // heads, heads)) > 1
    ]
    heads = max(fit, default=1)
    return Mesh(world // heads, heads)


def windowed(mesh: Mesh) -> int:
    """Ranks of a window (an inner ring): the largest number that fits, with its groups, into a node and
    leaves two or more windows; else 1."""
    most = RANKS_PER_NODE // mesh.heads
    return max(
        (window for window in _divisors(mesh.ring) if window <= most and window < mesh.ring), default=1
    )


def window_of(mesh: Mesh, windows: int) -> int:
    """Ranks of a window for a ring with this number of windows.

    Raises:
        ValueError: the number does not divide the ring.
    """
    if mesh.ring % windows:
        raise ValueError(f"a ring of {mesh.ring} cannot be divided evenly into {windows} windows")
    return mesh.ring // windows


def _divisors(number: int) -> list[int]:
    return [part for part in range(1, number + 1) if number % part == 0]
