"""Caches of the latest masks and references, which the next cells may share."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from longca.lab.bench.check.digest import mask_digest
from longca.lab.studies import Cell, cell_mask, mask_name
from longca.lab.studies.facts.drawn import DrawnLengths
from longca.lab.studies.record import MaskFacts
from longca.masks import Mask

if TYPE_CHECKING:
    from longca.lab.bench.check.plan import CheckPlan
    from longca.lab.bench.check.reference import Reference

KEPT = 2  # a block mask of 128K tokens and 64 head groups takes 268 MB
KEPT_REFERENCE_BYTES = 64 << 20  # of one reference


class LatestMasks:
    """Builds masks and keeps the last `KEPT`: forward and backward of one problem follow each other and share
    a mask. One that a kernel has changed is built anew."""

    def __init__(self) -> None:
        self._masks: OrderedDict[str, tuple[Mask, float, int]] = OrderedDict()

    def get(self, cell: Cell) -> tuple[Mask, float]:
        """(mask of the cell, milliseconds that building it took, now or earlier)."""
        name = mask_name(cell)
        if name not in self._masks or self.is_changed(cell):
            start = time.perf_counter()
            mask = cell_mask(cell)
            self._masks[name] = mask, (time.perf_counter() - start) * 1e3, mask_digest(mask)
            if len(self._masks) > KEPT:
                self._masks.popitem(last=False)
        self._masks.move_to_end(name)
        mask, mask_ms, _ = self._masks[name]
        return mask, mask_ms

    def is_changed(self, cell: Cell) -> bool:
        """True if the cell's mask is kept, and does not hold any more what it was built with."""
        mask, _, digest = self._masks.get(mask_name(cell), (None, 0.0, 0))
        try:
            return mask is not None and mask_digest(mask) != digest
        except Exception:  # of whatever a kernel has put in the place of an array
            return True


def mask_facts(mask: Mask) -> MaskFacts:
    """The facts about a mask that a record holds."""
    return MaskFacts(
        digest=mask.digest,
        area=mask.area,
        num_groups=mask.num_groups,
        num_bands=mask.traits.num_bands,
        drawn=mask.drawn,
        lengths={name: DrawnLengths.of(lengths) for name, lengths in mask.drawn_lengths.items()},
    )


class LatestReferences:
    """Keeps the references of the last `KEPT` problems on a CPU, where computing one takes longer than
    measuring a short cell.

    All kernels with the same problem are compared with the same reference, in both directions. On a GPU
    nothing is kept: a reference is computed in a quarter of a second, and its memory would be missing to the
    next kernel.
    """

    def __init__(self) -> None:
        self._references: OrderedDict[tuple[object, ...], Reference] = OrderedDict()

    def get(self, plan: CheckPlan) -> Reference | None:
        """The reference of the cell's problem, with its own copy of the inputs, which no kernel has touched;
        None if none is kept."""
        from longca.lab.bench.check.reference import Reference, kept_bytes

        problem = plan.problem
        scope = plan.scope
        if problem.device.type != "cpu" or kept_bytes(problem, scope) > KEPT_REFERENCE_BYTES:
            return None
        key = (
            plan.seed,
            problem.mask.digest,
            problem.num_q_heads,
            problem.num_kv_heads,
            problem.head_dim,
            problem.dtype,
            scope,
        )
        if key not in self._references:
            self._references[key] = Reference(problem, plan.inputs(), scope, keep=True)
            if len(self._references) > KEPT:
                self._references.popitem(last=False)
        self._references.move_to_end(key)
        return self._references[key]
