"""Twins: play-offs in which the first player plays under two names. Their two times say how much calls of one
kernel differ that alternate in one process (A/A). It never imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from longca.core.playoff.repeats import RepeatRules, drawn_cases
from longca.core.record import Record


def cases_with_twins(
    due: Sequence[str], num_kept: int, num_kept_with_twins: int, seed: int, rules: RepeatRules, *, on_gpu: bool
) -> set[str]:
    """The cases, of those that are played off now, in which the first player has a twin.

    Args:
        due: cases that are played off now.
        num_kept: play-offs of before.
        num_kept_with_twins: of these.
        on_gpu: the run has GPUs: at least one play-off has a twin.
    """
    wanted = rules.count_twins(len(due) + num_kept, at_least_one=on_gpu)
    return set(drawn_cases(due, seed)[: max(wanted - num_kept_with_twins, 0)])


def has_twin(records: Sequence[Record]) -> bool:
    """True if one of the records of a play-off is of a twin."""
    return any(record.repeat for record in records)


def difference_of_twins(records: Sequence[Record]) -> float | None:
    """The difference of the two medians, as a share of the shorter one; None without two numbers."""
    twin = next((record for record in records if record.repeat), None)
    if twin is None:
        return None
    both = [record.samples for record in records if record.cell_id == twin.cell_id and record.samples is not None]
    if len(both) < 2:
        return None
    one, other = (median(samples.time_ms[0]) for samples in both)
    return max(one, other) / min(one, other) - 1
