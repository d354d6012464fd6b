"""LoongTrain: a double ring of head groups; ranks of a group split heads (arXiv 2406.18485).

Keys circulate inside a window of ranks while they are already being sent to the next window. So few transfers
cross nodes, and each of these has a full inner round to arrive.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from longca.core import Frozen
from longca.cp.partition.mesh import Mesh, double_ring, head_groups, window_of, windowed
from longca.cp.planned import PlannedStrategy
from longca.cp.schedule.ring_and_gather import Ring


class LoongTrain(PlannedStrategy):
    label = "LoongTrain"
    summary = (
        "A double ring: keys go round in windows of ranks while those of the next window are on their "
        "way; beside it Ulysses"
    )
    url = "https://arxiv.org/abs/2406.18485"

    class Params(Frozen):
        heads: int | None = Field(None, ge=1)
        """ranks of a head group; the other dimension is the ring. None: `double_ring` chooses"""
        windows: int | None = Field(None, ge=1)
        """number of windows of the ring; 1, or windows of one rank, is a single ring. None: `windowed`
        chooses"""

    def mesh(self, world: int, num_kv_heads: int) -> Mesh:
        heads = self.params.heads
        return double_ring(world, num_kv_heads) if heads is None else head_groups(world, num_kv_heads, heads)

    def schedules(self, mesh: Mesh) -> Sequence[Ring]:
        windows = self.params.windows
        window = windowed(mesh) if windows is None else window_of(mesh, windows)
        return (Ring(window=window if 1 < window < mesh.ring else None),)
