"""Ring All-Gather: each rank gets the keys that it needs from who holds them, its own computed with meanwhile (arXiv 2407.21783).

Beyond that: a window's halo and a document's rest are all that is moved, in as many stages as promise to hide it, or first of all where
that takes less time than merging, and no rank ever holds more than two stages' keys beside its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from longca.cp.partition.mesh import Mesh
from longca.cp.planned import PlannedStrategy
from longca.cp.schedule.gather import Gather


class RingAllGather(PlannedStrategy):
    label = "Ring All-Gather"
    summary = "Each rank gathers the keys that it needs straight from who holds them, its own being computed with first"
    url = "https://arxiv.org/abs/2407.21783"

    def schedules(self, mesh: Mesh) -> Sequence[Gather]:
        others = max(mesh.ring - 1, 1)
        return tuple(Gather(stages) for stages in dict.fromkeys((1, 0, min(2, others), others)))
