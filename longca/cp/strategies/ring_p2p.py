"""Ring P2P: keys and values go from rank to rank, each time while the ones before are computed with (arXiv 2310.01889).

Beyond that: only keys that a later rank still sees are passed on, steps without a visible pair are no kernel calls, keys go both ways where
that brings near what masks see on either side, and gradients of keys go straight home.
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
