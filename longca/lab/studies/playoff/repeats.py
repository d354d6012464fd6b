"""Repeats (A/A): cells that a run measures a second time, and twins, players that play under two names.

They tell a run's own noise. Here are their rules, and the cells and cases that are drawn.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Annotated, Self

from pydantic import Field, model_validator

from longca.core import AS_RELEASED, Frozen
from longca.lab.studies.cell import Cell

MOST_REPEATS = 1_000_000


class RepeatRules(Frozen):
    """The rules that select the cells for a second measurement."""

    share: float = Field(default=0.02, ge=0, le=1)
    """of the timed cells"""
    least: Annotated[int, Field(ge=0, le=MOST_REPEATS)] = 4
    """minimum number, if there are as many"""
    most: Annotated[int, Field(ge=0, le=MOST_REPEATS)] = 40
    """so many at most"""
    twins: float = Field(default=0.1, ge=0, le=1)
    """of the play-offs: in this share the first player plays under two names; in one at least where a run has
    GPUs, unless it is 0"""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.most < self.least:
            raise ValueError(f"`most` is {self.most}, less than `least`, {self.least}")
        return self

    def count(self, num_cells: int) -> int:
        """The number of repeats for this number of timed cells."""
        return min(max(math.ceil(self.share * num_cells), self.least), self.most, num_cells)

    def count_twins(self, num_playoffs: int, *, at_least_one: bool) -> int:
        """The number of twins of so many play-offs."""
        if not self.twins or not num_playoffs:
            return 0
        return max(math.floor(self.twins * num_playoffs), int(at_least_one))


def may_repeat(cell: Cell) -> bool:
    """True for cells whose repeats are representative: kernels whose calls are timed separately."""
    return cell.kind == "kernel" and not cell.sustained and not cell.kernel.startswith(AS_RELEASED)


def drawn(times_ms: Mapping[Cell, float], seed: int) -> list[Cell]:
    """All cells, ordered such that every prefix is a fair sample.

    Cells are taken in turn from the groups of one kernel, direction and decade of time, so that the first
    cells include short and long calls of each kernel. The order within a group depends only on the seed and
    the cell, so new cells do not change the order of others.
    """
    groups: dict[tuple[str, str, int], list[Cell]] = defaultdict(list)
    for cell, time_ms in times_ms.items():
        groups[cell.kernel, cell.direction, math.floor(math.log10(time_ms))].append(cell)
    ordered = [sorted(members, key=lambda cell: _chance(seed, cell.cell_id)) for members in groups.values()]
    ordered.sort(key=lambda members: _chance(seed, members[0].cell_id))
    return [cell for row in zip_longest(*ordered) for cell in row if cell is not None]


def beginning(times_ms: Mapping[Cell, float], seed: int, rules: RepeatRules) -> Sequence[Cell]:
    """The cells to measure a second time."""
    return drawn(times_ms, seed)[: rules.count(len(times_ms))]


def cases_with_twins(
    due: Iterable[str],
    num_kept: int,
    num_kept_with_twins: int,
    seed: int,
    rules: RepeatRules,
    *,
    on_gpu: bool,
) -> set[str]:
    """The cases, of those that are played off now, in which the first player has a twin.

    Args:
        due: cases that are played off now.
        num_kept: play-offs of before.
        num_kept_with_twins: of these.
        on_gpu: the run has GPUs: at least one play-off has a twin.
    """
    ordered = sorted(due, key=lambda case: _chance(seed, case))
    wanted = rules.count_twins(len(ordered) + num_kept, at_least_one=on_gpu)
    return set(ordered[: max(wanted - num_kept_with_twins, 0)])


def _chance(seed: int, name: str) -> str:
    return hashlib.sha256(f"{seed} {name}".encode()).hexdigest()
