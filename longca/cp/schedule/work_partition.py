"""The work partition of one problem: the mesh of ranks, the plan of a ring, and the chunks of heads. It is
made before ranks start."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from longca.cp.partition.mesh import SUM_BYTES, Mesh, plan_heads
from longca.cp.partition.sharding import make_sharding
from longca.cp.schedule.buffer_schedule import BufferSchedule
from longca.cp.schedule.head_chunking import HeadCost, choose_chunks, divided, received_head_bytes
from longca.cp.schedule.planner import UnitCosts, cost_of
from longca.cp.schedule.ring_and_gather import Gather

if TYPE_CHECKING:
    from longca.core import CallSpec
    from longca.cp.schedule.head_chunking import ChunkWeights, HeadChunk
    from longca.cp.schedule.plan import Plan
    from longca.masks import Mask


@dataclass(frozen=True)
class WorkPartition:
    """The work of all ranks. Each rank computes the same one without communication."""

    mesh: Mesh
    plan: Plan
    """of the ranks of one ring, for all heads"""
    chunks: tuple[HeadChunk, ...]
    """chunks of the heads of a head group; a single chunk without head groups"""

    @property
    def heads_only(self) -> bool:
        """True if ranks split only heads: each has all keys of its heads, so that no results are merged."""
        return self.mesh.ring == 1 and self.mesh.heads > 1

    def mask_groups(self, chunk: HeadChunk, head_rank: int) -> range:
        """The mask's head groups for the (non-empty) heads of a rank in a chunk.

        Args:
            head_rank: the rank's index in its head group.
        """
        groups = chunk.heads.mask_groups(head_rank, self.plan.partition.mask.num_groups)
        assert groups is not None, "`supports` has been asked"
        return groups

    def plan_of(self, groups: range) -> Plan:
        """The plan of some head groups of the mask. The sharding is the same for all groups."""
        mask = self.plan.partition.mask
        return (
            self.plan
            if len(groups) == mask.num_groups
            else self.plan.of_mask(mask.select_groups(groups.start, groups.stop))
        )


def partition_heads(
    mask: Mask, call: CallSpec, world: int, weights: ChunkWeights | None = None
) -> WorkPartition:
    """Splits the heads among all ranks: each rank has the whole sequence of its heads.

    Args:
        weights: weights of the chunks, instead of the estimated fastest ones.

    Raises:
        ValueError: heads cannot be divided by these weights.
    """
    costs = UnitCosts.of(1, 1, call.head_dim, num_groups=mask.num_groups)
    whole = Gather().plan(mask, make_sharding("contiguous", mask, 1))
    cost = HeadCost(cost_of(whole, costs).compute_s, received_head_bytes(call, mask.seqlen_q, world))
    heads = plan_heads(call.num_q_heads, call.num_kv_heads, world)
    return WorkPartition(
        Mesh(1, world), whole, choose_chunks(heads, mask.num_groups, cost, call.direction == "bwd", weights)
    )


def partition_on(
    mesh: Mesh, plan: Plan, call: CallSpec, weights: ChunkWeights | None = None
) -> WorkPartition:
    """Divides the heads of a head group into chunks, for a given plan of the rings.

    Args:
        weights: weights of the chunks, instead of the estimated fastest ones. Ignored without head groups.

    Raises:
        ValueError: heads cannot be divided by these weights.
    """
    mask = plan.partition.mask
    heads = plan_heads(call.num_q_heads, call.num_kv_heads, mesh.heads)
    if mesh.heads == 1:
        (whole,) = divided(heads, mask.num_groups, [(1,)], (1,))
        return WorkPartition(mesh, plan, whole)
    costs = replace(unit_costs(call, mesh, mask), call_s=0.0)
    held = received_head_bytes(call, mask.seqlen_q // mesh.ring, mesh.heads)
    # over the whole ring
    cost = HeadCost(cost_of(plan, costs).total_s / (call.num_q_heads // mesh.heads), held, plan.num_steps)
    return WorkPartition(
        mesh, plan, choose_chunks(heads, mask.num_groups, cost, call.direction == "bwd", weights)
    )


def unit_costs(call: CallSpec, mesh: Mesh, mask: Mask) -> UnitCosts:
    """The unit costs of a forward call for the heads of a rank."""
    return UnitCosts.of(
        call.num_q_heads // mesh.heads,
        call.num_kv_heads // mesh.heads,
        call.head_dim,
        num_groups=mask.num_groups,
        elem_bytes=call.elem_bytes,
    )


def memory_bytes(work: WorkPartition, call: CallSpec) -> float:
    """Largest memory of a rank in a call: the memory of attention itself, and that of the strategy."""
    mesh = work.mesh
    plan = work.plan
    row = call.head_dim
    backward = call.direction == "bwd"
    tokens = float(plan.sharding.num_tokens.max()) / mesh.heads
    inputs = (
        (2 * call.num_q_heads + 2 * call.num_kv_heads)
        * tokens
        * row
        * call.elem_bytes
        * (2 if backward else 1)
    )
    q_heads = max(sum(len(chunk.q[rank]) for chunk in work.chunks) for rank in range(mesh.heads))
    kv_heads = (
        max(sum(len(chunk.arriving[rank]) for chunk in work.chunks) for rank in range(mesh.heads))
        or call.num_kv_heads
    )
    held = float(plan.sharding.num_tokens.max())
    gathered = (
        (2 * q_heads + 2 * kv_heads) * held * row * call.elem_bytes * (2 if backward else 1)
        if mesh.heads > 1
        else 0.0
    )
    buffers = 0.0
    if mesh.ring > 1:
        of_rank = int(plan.received_kv.sum(axis=1).argmax())
        buffers = (
            sum(BufferSchedule(plan, of_rank, early=True).buffer_keys) * 2 * kv_heads * row * call.elem_bytes
        )
        sums = q_heads * held + (2 * kv_heads * held + 2 * kv_heads * held if backward else 0)
        buffers += sums * row * SUM_BYTES + (2 * buffers if backward else 0)
    return inputs + gathered + buffers
