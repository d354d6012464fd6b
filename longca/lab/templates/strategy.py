"""Each rank gathers the keys that it needs before it computes. Replace the schedules, or the mesh, with your
own.

A planned strategy defines its mesh of ranks and its schedules; sharding, messages, kernel calls and both
directions follow from the plan. For other strategies, `longca/cp/contract.py` has the general contract.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from longca.core import Frozen
from longca.cp import PlannedStrategy
from longca.cp.partition import Mesh
from longca.cp.schedule import Gather


class NewStrategy(PlannedStrategy):
    label = "New strategy"  # stands in figures
    summary = "Each rank gathers the keys that it needs, and computes with its own meanwhile"
    url = "https://arxiv.org/abs/2407.21783"  # source

    class Params(Frozen):
        """Parameters with their defaults; a study may override them: `strategy: {NAME: {stages: 2}}`."""

        stages: int = Field(1, ge=0)
        """steps for remote keys; 0: one step, after all keys have arrived"""

    def mesh(self, world: int, num_kv_heads: int) -> Mesh:
        """The mesh of ranks: `Mesh(world)` is one ring that splits keys; `longca.cp.partition.mesh` also has
        meshes with heads."""
        return Mesh(world)

    def schedules(self, mesh: Mesh) -> Sequence[Gather]:
        """The schedules to choose among, the simplest first: `Gather` here, `Ring` in
        `longca.cp.schedule.ring_and_gather`."""
        return (Gather(self.params.stages),)
