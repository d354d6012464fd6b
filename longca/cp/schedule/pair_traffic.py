"""Exact bytes between each pair of ranks of a job in one call, computed from the mesh and the plan, and the
inter-node part.

Ranks are those of the mesh until `placed` maps them to the job. Ranks of the job fill node after node.

Shapes: W ranks of the job.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from longca.cp.partition.mesh import RANKS_PER_NODE, Mesh, plan_heads
from longca.cp.schedule.timeline import PlanTraffic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from longca.core import CallSpec
    from longca.cp.schedule.plan import Plan


@dataclass(frozen=True)
class PairTraffic:
    """Bytes of one call in one direction, (W, W) int64 each by (sender, receiver)."""

    heads: np.ndarray
    """all-to-alls within head groups"""
    kv: np.ndarray
    """KV along the rings and, backward, dK and dV to their owners"""
    kv_hops: np.ndarray
    """number of steps in which a rank sends KV to another one"""

    @classmethod
    def of(cls, mesh: Mesh, plan: Plan, call: CallSpec) -> PairTraffic:
        """The traffic of a plan with split heads, each KV head on one rank.

        Args:
            plan: plan plan of the ranks of one ring, for all heads of the mask.
        """
        heads, kv, hops = (np.zeros((mesh.world, mesh.world), dtype=np.int64) for _ in range(3))
        row_bytes = call.head_dim * call.elem_bytes  # of a token of one head
        tokens = [len(part) for rank in range(mesh.ring) for part in mesh.tokens(plan.sharding, rank)]
        shares = plan_heads(call.num_q_heads, call.num_kv_heads, mesh.heads).ranks
        of_share = [(len(share.q) + 2 * len(share.kv), len(share.q)) for share in shares]
        if call.direction == "bwd":
            # dout arrives; dq, dk and dv are sent
            of_share = [(leaving, arriving) for arriving, leaving in of_share]
        for sender in range(mesh.world):
            for receiver in set(mesh.group(sender)) - {sender}:
                arriving = of_share[mesh.of(receiver)[1]][0]
                leaving = of_share[mesh.of(sender)[1]][1]
                heads[sender, receiver] = (tokens[sender] * arriving + tokens[receiver] * leaving) * row_bytes
        moved, in_steps = PlanTraffic.of(plan).tokens(backward=call.direction == "bwd")
        for number, share in enumerate(shares):
            ring = np.ix_(mesh.ring_of(number), mesh.ring_of(number))
            kv[ring] = moved.T * 2 * len(share.kv) * row_bytes
            hops[ring] = in_steps.T
        return cls(heads, kv, hops)

    def placed(self, places: Sequence[int]) -> PairTraffic:
        """The same traffic with rank r of the mesh as rank `places[r]` of the job."""
        mesh_ranks = np.argsort(places)
        order = np.ix_(mesh_ranks, mesh_ranks)
        return PairTraffic(self.heads[order], self.kv[order], self.kv_hops[order])


def leaves_node(world: int, ranks_per_node: int = RANKS_PER_NODE) -> np.ndarray:
    """True for each pair of ranks on different nodes, (W, W) bool."""
    node = np.arange(world) // ranks_per_node
    return node[:, None] != node


def swapped(mesh: Mesh) -> list[int]:
    """Ranks in the job for a mesh with swapped dimensions: ranks of a ring are neighbours, those of a head
    group are not."""
    return [head_rank * mesh.ring + ring_rank for ring_rank, head_rank in map(mesh.of, range(mesh.world))]
