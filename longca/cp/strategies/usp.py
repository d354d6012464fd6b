"""USP: neighbours split heads, and groups of neighbours form a ring that splits keys (arXiv 2405.07719).

Neighbours share a node. They split heads because all-to-alls send the most bytes, and the arrival of the
first heads and the return of the last results cannot overlap.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from longca.core import Frozen
from longca.cp.partition.mesh import Mesh, head_groups, hybrid
from longca.cp.planned import PlannedStrategy
from longca.cp.schedule.ring_and_gather import Ring


class Usp(PlannedStrategy):
    label = "USP"
    summary = (
        "Ulysses among neighbours, a ring among those beyond; as many heads apart as need no copies "
        "of KV heads"
    )
    url = "https://arxiv.org/abs/2405.07719"

    class Params(Frozen):
        heads: int | None = Field(None, ge=1)
        """ranks of a head group, the degree of Ulysses; the other dimension is the ring. None: `hybrid`
        chooses"""

    def mesh(self, world: int, num_kv_heads: int) -> Mesh:
        heads = self.params.heads
        return hybrid(world, num_kv_heads) if heads is None else head_groups(world, num_kv_heads, heads)

    def schedules(self, mesh: Mesh) -> Sequence[Ring]:
        return (Ring(), Ring(two_way=True)) if mesh.ring > 2 else (Ring(),)
