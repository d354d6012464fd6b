"""Repeats (A/A): pairs of measurements of the same thing. They say how small a difference still means
something."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import combinations

from longca.lab.ranking.lead import compare, interval_widths, rounds_of_both
from longca.lab.ranking.measurement import Measurement
from longca.lab.ranking.point import MeasuredPoint
from longca.lab.ranking.relation import Relation, RepeatPair, relation_of
from longca.lab.ranking.resolution import LEAST_PAIRS, Resolutions

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

    Calls of a play-off alternate. A player and its twin, the same kernel under a second name, are such a pair
    for the relation "play-off". Where there are too few of them for a resolution, so are the two halves of
    each player's samples, every other one: half the samples differ by more than all.

    Args:
        any_version: also of several method versions: the caller knows that the timed code is the same.
    """
    cells: dict[tuple[str, str, str, bool], list[Measurement]] = defaultdict(list)
    pairs: list[RepeatPair] = []
    players: dict[tuple[str, str], list[Measurement]] = defaultdict(list)
    for record in measurements:
        if record.playoff:
            players[record.playoff, record.cell_id].append(record)
        elif record.cell_id:
            version = "" if any_version else record.version
            cells[record.cell_id, record.device, version, record.rests].append(record)
    for members in cells.values():
        pairs += [
            _pair(first, second, relation_of(first, second))
            for first, second in combinations(members[:MOST_OF_CELL], 2)
        ]
    return [*_of_playoffs(players.values()), *pairs]


def share_told_apart(pairs: Iterable[RepeatPair], rule: Callable[[RepeatPair], bool]) -> tuple[int, int]:
    """(number of pairs that a rule calls different, number of pairs)."""
    verdicts = [rule(pair) for pair in pairs]
    return sum(verdicts), len(verdicts)


def _of_playoffs(players: Iterable[Sequence[Measurement]]) -> list[RepeatPair]:
    """The pairs of play-offs.

    Args:
        players: the measurements of each: one, or two where it has a twin.
    """
    twins: dict[tuple[str, bool], list[RepeatPair]] = defaultdict(list)
    halves: dict[tuple[str, bool], list[RepeatPair]] = defaultdict(list)
    for members in players:
        key = members[0].device, members[0].rests
        halves[key] += [pair for record in members for pair in _halves(record)]
        if members[0].cell_id:
            twins[key] += [pair for first, other in combinations(members, 2) for pair in _twins(first, other)]
    return [
        pair
        for key, of_halves in halves.items()
        for pair in (*twins[key], *(of_halves if len(twins[key]) < LEAST_PAIRS else ()))
    ]


def _twins(first: Measurement, second: Measurement) -> list[RepeatPair]:
    """Both by the rounds that both played: where not all players fit into memory, these are not all."""
    shared = rounds_of_both(first, second)
    if len(shared) < LEAST_SAMPLES:
        return []
    first_part, second_part = (
        _part(side, [times[index] for times in shared]) for index, side in enumerate((first, second))
    )
    return [_pair(first_part, second_part, "play-off")]


def _halves(played: Measurement) -> list[RepeatPair]:
    times = played.times_ms
    if len(times) < LEAST_SAMPLES:
        return []
    return [_pair(_part(played, times[0::2]), _part(played, times[1::2]), "play-off")]


def _pair(first: Measurement, second: Measurement, relation: Relation) -> RepeatPair:
    below, above = interval_widths(first, second)
    return RepeatPair(first, second, relation, below if first.rate > second.rate else above)


def _part(played: Measurement, times_ms: Sequence[float]) -> Measurement:
    """A measurement of some of its samples, in calls a second."""
    timed = Measurement.timed(times_ms)
    return replace(
        played,
        rate=timed.rate,
        low=timed.low,
        high=timed.high,
        times_ms=timed.times_ms,
        rounds=(),
        version="",
    )
