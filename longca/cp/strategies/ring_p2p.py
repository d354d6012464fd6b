"""Ring P2P: keys and values circulate from rank to rank while each rank computes with the previous ones
(arXiv 2310.01889).

In addition to the paper:

- Only keys that a later rank still needs are forwarded.
- Steps without visible pairs have no kernel call.
- Keys circulate in both directions if masks see keys on both sides.
- dK and dV are sent directly to the owner of the keys.
"""

from __future__ import annotations

from collections.abc import Sequence

from longca.cp.partition.mesh import Mesh
from longca.cp.planned import PlannedStrategy
from longca.cp.schedule.ring_and_gather import Ring


class RingP2P(PlannedStrategy):
    label = "Ring P2P"
    summary = (
        "Keys and values go round from rank to rank while others are computed with; two or three "
        "buffers, whatever the ranks"
    )
    url = "https://arxiv.org/abs/2310.01889"

    def schedules(self, mesh: Mesh) -> Sequence[Ring]:
        return (Ring(), Ring(two_way=True)) if mesh.ring > 2 else (Ring(),)
