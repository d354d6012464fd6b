"""Checks in advance whether a kernel supports the calls of all ranks.

A planned strategy makes one kernel call in each step of each rank, each with its own mask. Building all of
these masks would take long with many ranks. So kernels that support every band mask are not checked for
single steps, and other kernels are checked for MAX_PROBED steps of MAX_PROBED ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from longca.cp.runtime.steps import active_rows

if TYPE_CHECKING:
    from longca.cp.partition.heads import HeadPlan
    from longca.cp.schedule.plan import Plan, Step
    from longca.kernels.contract import Kernel
    from longca.lab.studies.cell import CallSpec
    from longca.masks.traits import Traits

MAX_PROBED = 8  # checked ranks, and checked steps of each rank, evenly spaced
ANY_NUMBER = 1 << 20  # number of intervals in a row or column beyond any mask

T = TypeVar("T")


@dataclass(frozen=True)
class KernelSupport:
    """One kernel, checked for the calls of ranks that split the heads of `call` by `heads`."""

    kernel: Kernel
    device_type: str
    call: CallSpec
    """of the whole problem, with all its heads"""
    heads: HeadPlan

    def does_all_bands(self, traits: Traits) -> bool:
        """True if the kernel supports any band mask, so that steps need no check. False for block masks."""
        if traits.is_block_grid:
            return False
        return (
            self._refusal(
                [replace(unknown_part(traits), max_row_intervals=ANY_NUMBER, max_col_intervals=ANY_NUMBER)]
            )
            is None
        )

    def misfit(self, plan: Plan) -> str | None:
        """The reason why the kernel does not support some step of a plan; None if it supports all."""
        return self._refusal(step_traits(plan))

    def _refusal(self, traits: Iterable[Traits]) -> str | None:
        reasons = (
            self.kernel.supports(call, known, self.device_type)
            for call, known in rank_calls(self.call, self.heads, traits)
        )
        return next(filter(None, reasons), None)


def rank_calls(
    call: CallSpec, heads: HeadPlan, traits: Iterable[Traits]
) -> Iterator[tuple[CallSpec, Traits]]:
    """The distinct calls of ranks under masks with these traits, with the heads of each rank."""
    shares = sorted({(len(share.q), len(share.kv)) for share in heads.ranks})
    found: set[Traits] = set()
    for known in traits:
        if known in found:
            continue
        found.add(known)
        for num_q_heads, num_kv_heads in shares:
            yield replace(call, num_q_heads=num_q_heads, num_kv_heads=num_kv_heads), known


def step_traits(plan: Plan) -> Iterator[Traits]:
    """Traits of the masks of a plan's steps, for at most MAX_PROBED ranks and steps. Full masks of one shape
    have one entry."""
    full: set[tuple[int, int]] = set()
    for rank in _probed(range(plan.world)):
        for number in _probed(plan.step_numbers(rank)):
            step = plan.step(rank, number)
            if not step.is_full or (shape := (step.num_rows, step.num_keys)) not in full:
                yield _traits_of(step)
                # a full step has set its shape
                full |= {shape} if step.is_full else set()  # pyright: ignore[reportPossiblyUnboundVariable]


def _traits_of(step: Step) -> Traits:
    """Traits of the mask of a step, cached in the partition for both directions and for other schedules with
    the same step."""
    kept, key = step.partition.kept, ("traits", step.rank, step.keys)
    if key not in kept:
        kept[key] = active_rows(step)[2].traits
    return kept[key]


def unknown_part(traits: Traits) -> Traits:
    """Bounds on the traits of an unknown part of a mask."""
    return replace(
        traits, full=False, causal=False, num_segments=0, window=None, block_size=None, empty_rows=True
    )


def _probed(items: Sequence[T]) -> list[T]:
    """All items, or MAX_PROBED evenly spaced ones, including the first and the last."""
    places = np.linspace(0, len(items) - 1, min(len(items), MAX_PROBED)).astype(int)
    return [items[place] for place in places.tolist()]
