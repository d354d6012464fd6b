"""LoongTrain: a double ring, and beside it heads that are divided among neighbours (arXiv 2406.18485).

Keys go round in a window of ranks while they are on their way to the next window, so that of all hops few are between nodes, and these have
as long as a whole round takes.
"""

from __future__ import annotations

from collections.abc import Sequence

from longca.cp.partition.mesh import Mesh, double_ring, windowed
from longca.cp.planned import PlannedStrategy
from longca.cp.schedule.ring import Ring


class LoongTrain(PlannedStrategy):
    label = "LoongTrain"
    summary = "A double ring: keys go round in windows of ranks while those of the next window are on their way; beside it Ulysses"
    url = "https://arxiv.org/abs/2406.18485"

    def mesh(self, world: int, num_kv_heads: int) -> Mesh:
        return double_ring(world, num_kv_heads)

    def schedules(self, mesh: Mesh) -> Sequence[Ring]:
        window = windowed(mesh)
        return (Ring(window=window if window > 1 else None),)
