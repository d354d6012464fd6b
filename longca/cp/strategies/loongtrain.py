"""LoongTrain: a double ring of head groups; ranks of a group divide heads (arXiv 2406.18485).

Keys go round inside a window of ranks while they are already on their way to the next window. So few transfers are between nodes, and each
of these has the time of a whole round inside a window.
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
