"""USP: heads are divided among neighbours and keys among those beyond, as in a ring (arXiv 2405.07719).

Neighbours, who share a node, divide heads: their all-to-alls move the most, and how the first heads come and the last leave is not hidden.
"""

from __future__ import annotations

from collections.abc import Sequence

from longca.cp.partition.mesh import Mesh, hybrid
from longca.cp.planned import PlannedStrategy
from longca.cp.schedule.ring import Ring


class Usp(PlannedStrategy):
    label = "USP"
    summary = "Ulysses among neighbours, a ring among those beyond; as many heads apart as need no copies of KV heads"
    url = "https://arxiv.org/abs/2405.07719"

    def mesh(self, world: int, num_kv_heads: int) -> Mesh:
        return hybrid(world, num_kv_heads)

    def schedules(self, mesh: Mesh) -> Sequence[Ring]:
        return (Ring(), Ring(two_way=True)) if mesh.ring > 2 else (Ring(),)
