"""Ring P2P: keys and values go from rank to rank while each rank computes with those before (arXiv 2310.01889).

In addition to the paper:

- Only keys that a later rank still needs are passed on.
- A rank has no kernel call in steps in which it sees no pair.
- Keys go both ways round where masks see keys on either side.
- dK and dV go straight to the owner of the keys.
"""

from __future__ import annotations

from collections.abc import Sequence

from longca.cp.partition.mesh import Mesh
from longca.cp.planned import PlannedStrategy
from longca.cp.schedule.ring import Ring


class RingP2P(PlannedStrategy):
    label = "Ring P2P"
    summary = "Keys and values go round from rank to rank while others are computed with; two or three buffers, whatever the ranks"
    url = "https://arxiv.org/abs/2310.01889"

    def schedules(self, mesh: Mesh) -> Sequence[Ring]:
        return (Ring(), Ring(two_way=True)) if mesh.ring > 2 else (Ring(),)
