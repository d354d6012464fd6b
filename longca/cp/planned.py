"""A strategy that is a schedule: which ranks share a ring, and how keys reach who needs them. All else follows from the plan."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from longca.core.cell import DTYPE_BYTES, Cell, Dtype
from longca.cp.contract import HeadStrategy
from longca.cp.partition.heads import HeadPlan, plan_heads
from longca.cp.partition.mesh import Mesh
from longca.cp.runtime.steps import active_rows
from longca.cp.schedule.chunk_choice import HeadCost, bytes_of_head, chunks_of
from longca.cp.schedule.cost import Rates, cost_of
from longca.cp.schedule.planner import Planner
from longca.cp.schedule.work_partition import WorkPartition, among_heads
from longca.cp.traffic_formula import formula_bytes

if TYPE_CHECKING:
    from longca.cp.comm.backend import Comm
    from longca.cp.contract import PreparedStrategy
    from longca.cp.schedule.head_chunking import Weights
    from longca.cp.schedule.plan import Gather, Plan, Ring
    from longca.kernels.contract import Kernel, Problem
    from longca.masks.mask import Mask
    from longca.masks.traits import Traits

MOST_ASKED = 8  # ranks, and steps of each, whose masks a kernel is asked about; of more, so many evenly spread
PREFERENCE = 1.05  # a schedule must promise to be so many times quicker than a simpler one
MANY = 1 << 20

T = TypeVar("T")


class PlannedStrategy(HeadStrategy):
    """Subclasses say `mesh` and `schedules`."""

    def mesh(self, world: int, num_kv_heads: int) -> Mesh:
        """Ranks that divide keys and ranks that divide heads, each with whole KV heads."""
        return Mesh(world)

    def schedules(self, mesh: Mesh) -> Sequence[Gather | Ring]:
        """To choose among, the simplest first."""
        raise NotImplementedError

    def supports(self, cell: Cell, traits: Traits) -> str | None:
        heads = self._heads(cell)
        if all(heads.mask_groups(rank, traits.num_groups) is not None for rank in range(len(heads.ranks))):
            return None
        return (f"the mask differs among {traits.num_groups} head groups, and {len(heads.ranks)} ranks cannot divide {cell.num_kv_heads} "
                "KV heads so that each has whole groups or heads of one")

    def refusal(self, cell: Cell, traits: Traits, kernel: Kernel, device_type: str) -> str | None:
        reason = kernel.in_parts(cell, device_type) or self.supports(cell, traits)
        if reason is not None or self._does_all(cell, traits, kernel, device_type):
            return reason
        if traits.is_block_grid:
            return super().refusal(cell, traits, kernel, device_type)
        from longca.masks.build import cell_mask

        reasons = []
        for plan in self._plans(cell_mask(cell), cell):
            reasons.append(self._misfit(plan, cell, kernel, device_type))
            if reasons[-1] is None:
                return None
        return reasons[0]

    def local_cells(self, cell: Cell, traits: Traits) -> list[tuple[Cell, Traits]]:
        """Those of all steps of all ranks. Of block masks, which are dear to draw, a bound of what may come: blocks of any size."""
        if traits.is_block_grid:
            heads = self._heads(cell)
            groups = (heads.mask_groups(rank, traits.num_groups) for rank in range(len(heads.ranks)))
            blocks = (replace(_shapeless(traits), num_groups=len(part)) for part in groups if part is not None)
            return [piece for part in blocks for piece in self._pieces(cell, [part])]
        from longca.masks.build import cell_mask

        return list(self._pieces(cell, _step_traits(self._plans(cell_mask(cell), cell)[0])))

    def prepare(self, problem: Problem, kernel: Kernel, comm: Comm, weights: Weights | None = None) -> PreparedStrategy:
        from longca.cp.runtime.prepared import PreparedHeads, PreparedPlan

        start_s = time.perf_counter()
        division = self.divide(problem, kernel, comm.world, weights)
        if division.of_heads_alone:
            prepared = PreparedHeads(problem, kernel, comm, division)
            prepared.notes.insert(0, f"heads among {division.mesh.heads}")
            return prepared
        planning_ms = (time.perf_counter() - start_s) * 1e3
        prepared = PreparedPlan(problem, kernel, comm, division, planning_ms)
        prepared.costs["formula_bytes"] = formula_bytes(problem, division.mesh)
        return prepared

    def divide(self, problem: Problem, kernel: Kernel, world: int, weights: Weights | None = None) -> WorkPartition:
        mesh = self.mesh(world, problem.num_kv_heads)
        if mesh.ring == 1 and mesh.heads > 1:
            return among_heads(problem, world, weights)
        cell = _cell_of(problem, kernel, world)
        plan = self._plan_for(problem.mask, cell, kernel, problem.device.type)
        chunks = chunks_of(self._heads(cell), problem.mask.num_groups, self._load(plan, problem, mesh), problem.needs_backward,
                           weights if mesh.heads > 1 else (1,))
        return WorkPartition(mesh, plan, chunks)

    def _load(self, plan: Plan, problem: Problem, mesh: Mesh) -> HeadCost:
        """Of the whole ring, heads shared out: its keys, too, are those of a chunk's heads."""
        num_q_heads = problem.num_q_heads // mesh.heads
        rates = Rates.of(num_q_heads, problem.num_kv_heads // mesh.heads, problem.head_dim, num_groups=problem.mask.num_groups,
                         elem_bytes=problem.dtype.itemsize)
        held = bytes_of_head(problem, problem.mask.seqlen_q // mesh.ring, mesh.heads)
        return HeadCost(cost_of(plan, replace(rates, call_s=0.0)).total_s / num_q_heads, held, plan.num_steps)

    def _plan_for(self, mask: Mask, cell: Cell, kernel: Kernel, device_type: str) -> Plan:
        """The one that promises to be quickest, of those whose steps the kernel does; the same on all ranks."""
        plans = self._plans(mask, cell)
        if mask.grid is not None or self._does_all(cell, mask.traits, kernel, device_type):
            return plans[0]
        return next((plan for plan in plans if self._misfit(plan, cell, kernel, device_type) is None), plans[0])

    def _plans(self, mask: Mask, cell: Cell) -> list[Plan]:
        """One for each schedule, the most promising first."""
        mesh = self.mesh(cell.world, cell.num_kv_heads)
        rates = Rates.of(cell.num_q_heads // mesh.heads, cell.num_kv_heads // mesh.heads, cell.head_dim, num_groups=mask.num_groups,
                         elem_bytes=DTYPE_BYTES[cell.dtype])
        planner = self._planners.setdefault(rates, Planner(rates))
        choices = [planner.choice(mask, mesh.ring, schedule) for schedule in self.schedules(mesh)]
        order = sorted(range(len(choices)), key=lambda number: choices[number].cost.total_s * PREFERENCE ** number)
        return [choices[number].plan for number in order]

    def _does_all(self, cell: Cell, traits: Traits, kernel: Kernel, device_type: str) -> bool:
        """Whether a kernel does any mask of bands, so that steps need not be looked at."""
        anything = replace(_shapeless(traits), max_row_intervals=MANY, max_col_intervals=MANY)
        return not traits.is_block_grid and all(kernel.supports(*piece, device_type) is None for piece in self._pieces(cell, [anything]))

    def _misfit(self, plan: Plan, cell: Cell, kernel: Kernel, device_type: str) -> str | None:
        """Why a kernel does not do some step of a plan; None if it does all."""
        reasons = (kernel.supports(*piece, device_type) for piece in self._pieces(cell, _step_traits(plan)))
        return next(filter(None, reasons), None)

    def _pieces(self, cell: Cell, traits: Iterable[Traits]) -> Iterator[tuple[Cell, Traits]]:
        """Kernel cells of masks with these traits, for the heads that each rank has; each once."""
        found: set[Traits] = set()
        shares = sorted({(len(share.q), len(share.kv)) for share in self._heads(cell).ranks})
        for piece in traits:
            if piece in found:
                continue
            found.add(piece)
            for num_q_heads, num_kv_heads in shares:
                yield cell.alone(num_q_heads=num_q_heads, num_kv_heads=num_kv_heads, seqlen=max(piece.seqlen_q, piece.seqlen_k, 1)), piece

    def _heads(self, cell: Cell) -> HeadPlan:
        return plan_heads(cell.num_q_heads, cell.num_kv_heads, self.mesh(cell.world, cell.num_kv_heads).heads)

    @cached_property
    def _planners(self) -> dict[Rates, Planner]:
        return {}


def _step_traits(plan: Plan) -> Iterator[Traits]:
    return (active_rows(step)[2].traits for rank in _some(range(plan.world)) for step in _some(plan.steps(rank)))


def _some(items: Sequence[T]) -> list[T]:
    """All, or MOST_ASKED of them, the first and the last among these."""
    places = np.linspace(0, len(items) - 1, min(len(items), MOST_ASKED)).astype(int)
    return [items[place] for place in places.tolist()]


def _shapeless(traits: Traits) -> Traits:
    """Of a part of a mask of which nothing is known."""
    return replace(traits, full=False, causal=False, num_segments=0, window=None, block_size=None, empty_rows=True)


def _cell_of(problem: Problem, kernel: Kernel, world: int) -> Cell:
    """What kernels are asked about: a problem as a cell."""
    import torch

    dtypes: dict[torch.dtype, Dtype] = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
    return Cell(kind="cp", strategy="any", kernel=kernel.name, world=world, mask=problem.mask.name, seqlen=problem.mask.seqlen_q,
                num_q_heads=problem.num_q_heads, num_kv_heads=problem.num_kv_heads, head_dim=problem.head_dim,
                dtype=dtypes[problem.dtype], direction="bwd" if problem.needs_backward else "fwd", seed=0)
