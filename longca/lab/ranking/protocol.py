"""Protocols: calls with a rest of the GPU after each, and calls without. Measurements of the two are never
ranked against each other.

In a case where at least half of the methods, and two of them, were measured with rests, only measurements
with rests compete. Elsewhere those without rests do, and methods with rests alone are left out: a few of them
say little of who is first among many. A claim compares methods that it names, so two with rests suffice
there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from longca.lab.ranking.measurement import Measurement
from longca.lab.ranking.point import MeasuredPoint


@dataclass(frozen=True)
class Competition:
    """The points of one case that are ranked, each with measurements of one protocol alone."""

    points: tuple[MeasuredPoint, ...]
    left_out: tuple[MeasuredPoint, ...]
    """those that have measurements of the other protocol only"""
    rests: bool
    """the protocol of the cells measured by themselves; play-offs may be of the other one"""


HALF = 0.5
"""the least share of a case's methods that have rests, where a case is ranked by them"""
ANY_TWO = 0.0


def is_by_rests(rested: AbstractSet[str], unrested: AbstractSet[str], share: float = HALF) -> bool:
    """True if a case is ranked by its measurements with rests.

    Args:
        rested: methods with such measurements.
        unrested: methods with measurements without rests.
        share: the least share of all these methods that have rests.
    """
    if rested >= unrested:
        return bool(rested)
    return len(rested) > 1 and len(rested) >= share * len(rested | unrested)


def competing(points: Sequence[MeasuredPoint], share: float = HALF) -> Competition:
    """The points of one case as they compete. Play-offs have a protocol of their own: all players share
    it.

    Args:
        share: as of `is_by_rests`.
    """
    own = _protocol({point.method: point.measurements for point in points}, share)
    played = _protocol({point.method: point.playoffs for point in points}, share)
    chosen = {point.method: _of_protocol(point, own, played) for point in points}
    return Competition(
        tuple(point for point in chosen.values() if point),
        tuple(point for point in points if chosen[point.method] is None),
        own,
    )


def common_protocol(first: Iterable[Measurement], second: Iterable[Measurement]) -> bool | None:
    """The protocol of which both have measurements, with rests (True) if possible; None if there is none."""
    shared = {record.rests for record in first} & {record.rests for record in second}
    return max(shared) if shared else None


def share_protocol(first: MeasuredPoint, second: MeasuredPoint) -> bool:
    """True if two points can be compared by measurements of one protocol."""
    if {record.playoff for record in first.playoffs} & {record.playoff for record in second.playoffs}:
        return True
    own = first.measurements or first.playoffs
    others = second.measurements or second.playoffs
    return common_protocol(own, others) is not None


def _protocol(records: Mapping[str, Collection[Measurement]], share: float) -> bool:
    rested, unrested = (
        {
            method
            for method, of_method in records.items()
            if any(record.rests == rests for record in of_method)
        }
        for rests in (True, False)
    )
    return is_by_rests(rested, unrested, share)


def _of_protocol(point: MeasuredPoint, own: bool, played: bool) -> MeasuredPoint | None:
    measurements = tuple(record for record in point.measurements if record.rests == own)
    playoffs = tuple(record for record in point.playoffs if record.rests == played)
    if not (measurements or playoffs):
        return None
    if (len(measurements), len(playoffs)) == (len(point.measurements), len(point.playoffs)):
        return point
    return replace(point, measurements=measurements, playoffs=playoffs)
