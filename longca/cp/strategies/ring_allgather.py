"""Ring All-Gather: each rank gets its visible keys from their owners and meanwhile computes with its own
(arXiv 2407.21783).

In addition to the paper:

- Only visible keys are sent: the halo of a sliding window, the remainder of a document.
- The number of stages is chosen for the best overlap; all keys arrive before the kernel if that is faster
    than merging.
- A rank holds at most the keys of two stages and its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from longca.cp.partition.mesh import Mesh
from longca.cp.planned import PlannedStrategy
from longca.cp.schedule.ring_and_gather import Gather


class RingAllGather(PlannedStrategy):
    label = "Ring All-Gather"
    summary = (
        "Each rank gathers the keys that it needs straight from who holds them, its own being "
        "computed with first"
    )
    url = "https://arxiv.org/abs/2407.21783"

    def schedules(self, mesh: Mesh) -> Sequence[Gather]:
        others = max(mesh.ring - 1, 1)
        return tuple(Gather(stages) for stages in dict.fromkeys((1, 0, min(2, others), others)))
