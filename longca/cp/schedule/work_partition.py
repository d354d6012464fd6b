"""What a strategy makes of a problem before any rank does anything: who divides keys, who divides heads, and into which chunks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from longca.cp.partition.heads import plan_heads
from longca.cp.partition.load_balance import place
from longca.cp.partition.mesh import Mesh
from longca.cp.schedule.chunk_choice import HeadCost, bytes_of_head, chunks_of
from longca.cp.schedule.cost import Rates, cost_of
from longca.cp.schedule.plan import Gather

if TYPE_CHECKING:
    from longca.cp.schedule.head_chunking import HeadChunk, Weights
    from longca.cp.schedule.plan import Plan
    from longca.kernels.contract import Problem


@dataclass(frozen=True)
class WorkPartition:
    """The same on all ranks, which make it without asking each other."""

    mesh: Mesh
    plan: Plan
    """of the ranks of one ring, for all heads"""
    chunks: tuple[HeadChunk, ...]
    """of the heads that a group divides; a single one where it divides none"""

    @property
    def of_heads_alone(self) -> bool:
        """Each rank has all keys of its heads, so that no results are put together."""
        return self.mesh.ring == 1 and self.mesh.heads > 1

    def groups(self, chunk: HeadChunk, number: int) -> range:
        """The mask's head groups that one rank of a group, by its number there, needs for its heads of a chunk, of which it has some."""
        found = chunk.heads.mask_groups(number, self.plan.cut.mask.num_groups)
        assert found is not None, "`supports` has been asked"
        return found

    def plan_of(self, groups: range) -> Plan:
        """The plan of some head groups of the mask: the same tokens for all."""
        mask = self.plan.cut.mask
        return self.plan if len(groups) == mask.num_groups else self.plan.of_mask(mask.select_groups(groups.start, groups.stop))


def among_heads(problem: Problem, world: int, weights: Weights | None = None) -> WorkPartition:
    """Heads divided among all ranks: each has the whole sequence.

    Args:
        weights: of the chunks, instead of those that promise to be quickest.

    Raises:
        ValueError: heads cannot be cut by these weights.
    """
    rates = Rates.of(1, 1, problem.head_dim, num_groups=problem.mask.num_groups)
    whole = Gather().plan(problem.mask, place("contiguous", problem.mask, 1))
    load = HeadCost(cost_of(whole, rates).compute_s, bytes_of_head(problem, problem.mask.seqlen_q, world))
    heads = plan_heads(problem.num_q_heads, problem.num_kv_heads, world)
    return WorkPartition(Mesh(1, world), whole, chunks_of(heads, problem.mask.num_groups, load, problem.needs_backward, weights))
