"""Repeats (A/A): pairs of measurements of the same thing. They say how small a difference still means
something."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import combinations

from longca.ranking.lead import compare
from longca.ranking.measurement import Measurement
from longca.ranking.point import MeasuredPoint
from longca.ranking.relation import RepeatPair, relation_of
from longca.ranking.resolution import Resolutions

LEAST_SAMPLES = 10  # of a play-off's record, of which its two halves are a pair
MOST_OF_CELL = 8  # measurements of one cell whose pairs are looked at: the pairs of more grow with the square


def is_told_apart(pair: RepeatPair, resolutions: Resolutions) -> bool:
    """True if the tie rule calls the two of a pair different, which is wrong."""
    first, second = (
        MeasuredPoint("same", (replace(side, playoff=""),)) for side in (pair.first, pair.second)
    )
    return not compare(first, second, resolutions, pair.relation).is_tie


def repeat_pairs(measurements: Iterable[Measurement], *, any_version: bool = False) -> list[RepeatPair]:
    """All pairs of measurements of one cell that the same code made on one model of device, both with rests
    after their calls or both without: rests alone change the rate.

    Calls of a play-off alternate: the two halves of its samples, every other one, are such a pair for the
    relation "play-off".

    Args:
        any_version: also of several method versions: the caller knows that the timed code is the same.
    """
    cells: dict[tuple[str, str, str, bool], list[Measurement]] = defaultdict(list)
    pairs: list[RepeatPair] = []
    for record in measurements:
        if record.playoff:
            pairs += _halves(record)
        elif record.cell_id:
            version = "" if any_version else record.version
            cells[record.cell_id, record.device, version, record.rests].append(record)
    for members in cells.values():
        pairs += [
            RepeatPair(first, second, relation_of(first, second))
            for first, second in combinations(members[:MOST_OF_CELL], 2)
        ]
    return pairs


def share_told_apart(pairs: Iterable[RepeatPair], rule: Callable[[RepeatPair], bool]) -> tuple[int, int]:
    """(number of pairs that a rule calls different, number of pairs)."""
    verdicts = [rule(pair) for pair in pairs]
    return sum(verdicts), len(verdicts)


def _halves(played: Measurement) -> list[RepeatPair]:
    times = played.times_ms
    if len(times) < LEAST_SAMPLES:
        return []
    first, second = (
        Measurement.timed(
            half,
            device=played.device,
            unit=played.unit,
            run=played.run,
            playoff=played.playoff,
            seed=played.seed,
            cell_id=played.cell_id,
            rests=played.rests,
        )
        for half in (times[0::2], times[1::2])
    )
    return [RepeatPair(first, second, "play-off")]
