"""A strategy that is a schedule: which ranks share a ring, and how keys reach who needs them. All else follows from the plan."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from longca.core.cell import DTYPE_BYTES, Cell
from longca.cp.contract import Strategy
from longca.cp.cost import Rates
from longca.cp.heads import plan_heads
from longca.cp.local_steps import seen_rows
from longca.cp.mesh import Mesh
from longca.cp.planner import Planner

if TYPE_CHECKING:
    from longca.cp.comm import Comm
    from longca.cp.plan import Gather, Plan, Ring
    from longca.cp.prepared_plan import PreparedPlan
    from longca.kernels.contract import Kernel, Problem
    from longca.masks.mask import Mask
    from longca.masks.traits import Traits

MOST_ASKED = 16  # ranks whose step masks a kernel is asked about; of more ranks, so many evenly spread
BETTER = 0.95  # of the time of a simpler schedule is what a more involved one must promise


class PlannedStrategy(Strategy):
    """Subclasses say `mesh` and `schedules`."""

    def mesh(self, world: int, num_kv_heads: int) -> Mesh:
        """Ranks that divide keys and ranks that divide heads."""
        return Mesh(world)

    def schedules(self, mesh: Mesh) -> Sequence[Gather | Ring]:
        """The simplest first: one that promises enough more is taken instead."""
        raise NotImplementedError

    def supports(self, cell: Cell, traits: Traits) -> str | None:
        mesh = self.mesh(cell.world, cell.num_kv_heads)
        heads = plan_heads(cell.num_q_heads, cell.num_kv_heads, mesh.heads)
        cut = [rank for rank in range(mesh.heads) if heads.mask_groups(rank, traits.num_groups) is None]
        return (f"the mask differs among {traits.num_groups} head groups, and {mesh.heads} ranks cannot divide {cell.num_kv_heads} KV "
                "heads so that each has whole groups or heads of one") if cut else None

    def refusal(self, cell: Cell, traits: Traits, kernel: Kernel, device_type: str) -> str | None:
        return kernel.in_parts(cell, device_type) or super().refusal(cell, traits, kernel, device_type)

    def local_cells(self, cell: Cell, traits: Traits) -> list[tuple[Cell, Traits]]:
        """Those of all steps of all ranks. Of block masks, which are dear to draw, a bound of what may come: blocks of any size."""
        mesh = self.mesh(cell.world, cell.num_kv_heads)
        heads = plan_heads(cell.num_q_heads, cell.num_kv_heads, mesh.heads)
        found: dict[tuple[Cell, Traits], None] = {}
        for number, share in enumerate(heads.ranks):
            groups = heads.mask_groups(number, traits.num_groups)
            assert groups is not None, "`supports` has been asked"
            pieces = [_any_blocks(traits, len(groups))] if traits.is_block_grid else self._step_traits(cell, mesh)
            for piece in pieces:
                local = {"kind": "kernel", "strategy": None, "world": 1, "num_q_heads": len(share.q), "num_kv_heads": len(share.kv),
                         "seqlen": max(piece.seqlen_q, piece.seqlen_k)}
                found[Cell(**cell.model_dump() | local), piece] = None
        return list(found)

    def prepare(self, problem: Problem, kernel: Kernel, comm: Comm) -> PreparedPlan:
        from longca.cp.prepared_plan import PreparedPlan

        start_s = time.perf_counter()
        mesh = self.mesh(comm.world, problem.num_kv_heads)
        plan = self.plan(problem.mask, mesh, problem.num_q_heads, problem.num_kv_heads, problem.head_dim, problem.dtype.itemsize)
        heads = plan_heads(problem.num_q_heads, problem.num_kv_heads, mesh.heads)
        groups = heads.mask_groups(mesh.of(comm.rank)[1], problem.mask.num_groups)
        assert groups is not None, "`supports` has been asked"
        if len(groups) < problem.mask.num_groups:  # the same tokens for all heads, and this rank's own masks
            plan = plan.of_mask(problem.mask.select_groups(groups.start, groups.stop))
        prepared = PreparedPlan(problem, kernel, comm, mesh, plan, start_s)
        prepared.costs |= formula_bytes(problem, mesh)
        prepared.notes.insert(0, f"{plan.schedule} of {mesh.ring}" + (f", heads among {mesh.heads}" if mesh.heads > 1 else ""))
        return prepared

    def plan(self, mask: Mask, mesh: Mesh, num_q_heads: int, num_kv_heads: int, head_dim: int, elem_bytes: int) -> Plan:
        """The one that promises to be quickest; the same on all ranks."""
        rates = Rates.of(num_q_heads // mesh.heads, num_kv_heads // mesh.heads, head_dim, num_groups=mask.num_groups, elem_bytes=elem_bytes)
        if rates not in self._planners:
            self._planners[rates] = Planner(rates)
        best, *others = (self._planners[rates].choice(mask, mesh.ring, schedule) for schedule in self.schedules(mesh))
        for other in others:
            if other.cost.total_s < BETTER * best.cost.total_s:
                best = other
        return best.plan

    def _step_traits(self, cell: Cell, mesh: Mesh) -> Iterator[Traits]:
        from longca.masks.build import cell_mask

        plan = self.plan(cell_mask(cell), mesh, cell.num_q_heads, cell.num_kv_heads, cell.head_dim, DTYPE_BYTES[cell.dtype])
        ranks = np.unique(np.linspace(0, plan.world - 1, min(plan.world, MOST_ASKED)).astype(int))
        return (seen_rows(step)[2].traits for rank in ranks.tolist() for step in plan.steps(rank))

    @cached_property
    def _planners(self) -> dict[Rates, Planner]:
        return {}


def _any_blocks(traits: Traits, num_groups: int) -> Traits:
    return replace(traits, num_groups=num_groups, full=False, causal=False, num_segments=0, window=None, block_size=None, empty_rows=True)


def formula_bytes(problem: Problem, mesh: Mesh) -> dict[str, float]:
    """Bytes that a rank sends in one direction by the books: Table 3 of arXiv 2510.17896 with Na = `mesh.heads`, Np = `mesh.ring`.

    The table is about forward passes. Backward, keys go round again and their gradients come home: twice its ring part.
    """
    element = problem.dtype.itemsize * problem.mask.seqlen_q * problem.head_dim * 2
    heads = (mesh.heads - 1) / (mesh.ring * mesh.heads ** 2) * (problem.num_kv_heads + problem.num_q_heads)
    ring = (mesh.ring - 1) / mesh.world * problem.num_kv_heads
    return {"formula_bytes": element * (heads + ring * (2 if problem.needs_backward else 1))}
