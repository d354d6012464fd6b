"""What the latest cells have in common with the next: masks, and the references of their results."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from longca.core.cell import Cell
from longca.masks.build import cell_mask, mask_name
from longca.masks.mask import Mask

if TYPE_CHECKING:
    from longca.bench.check.reference import Reference
    from longca.bench.check.scope import CheckedSubset
    from longca.kernels.contract import Problem

KEPT = 2  # a block mask of 128K tokens and 64 head groups takes 268 MB
KEPT_REFERENCE_BYTES = 64 << 20  # of one reference


class LatestMasks:
    """Builds masks, and keeps the last few: forward and backward of one problem follow each other, and share theirs."""

    def __init__(self) -> None:
        self._masks: OrderedDict[str, tuple[Mask, float]] = OrderedDict()

    def get(self, cell: Cell) -> tuple[Mask, float]:
        """The cell's mask, and the milliseconds that building it took, now or before."""
        name = mask_name(cell)
        if name not in self._masks:
            start = time.perf_counter()
            mask = cell_mask(cell)
            self._masks[name] = mask, (time.perf_counter() - start) * 1e3
            if len(self._masks) > KEPT:
                self._masks.popitem(last=False)
        self._masks.move_to_end(name)
        return self._masks[name]


class LatestReferences:
    """Keeps the references of the last few problems on a CPU, where to compute one takes longer than to measure a short cell.

    All kernels that are asked for the same attention are compared with the same reference, in both directions. On a GPU it is computed
    in a quarter of a second, and what it holds would be missing to the next kernel.
    """

    def __init__(self) -> None:
        self._references: OrderedDict[tuple[object, ...], Reference] = OrderedDict()

    def get(self, cell: Cell, problem: Problem, scope: CheckedSubset) -> Reference | None:
        """That of the cell's problem, of inputs of its own that no kernel has had; None where none is kept."""
        from longca.bench.check.inputs import input_seed, make_inputs
        from longca.bench.check.reference import Reference, kept_bytes

        if problem.device.type != "cpu" or kept_bytes(problem, scope) > KEPT_REFERENCE_BYTES:
            return None
        key = (input_seed(cell), problem.mask.digest, problem.num_q_heads, problem.num_kv_heads, problem.head_dim, problem.dtype,
               scope.kv_heads, scope.rows)
        if key not in self._references:
            self._references[key] = Reference(problem, make_inputs(cell, problem.device), scope, keep=True)
            if len(self._references) > KEPT:
                self._references.popitem(last=False)
        self._references.move_to_end(key)
        return self._references[key]
