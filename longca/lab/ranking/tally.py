"""Tallies: each method over many cases: how often it leads, its mean share, and its worst share with what
that leaves out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Any

from longca.lab.ranking.order import RankedMethod, Standing
from longca.lab.ranking.point import MeasuredPoint
from longca.lab.studies.samples import NOISY


@dataclass(frozen=True)
class WorstShare:
    """The lowest share of a method in cases where another one ran, too, and what it leaves out."""

    share: float
    where: Any
    """key of its case"""
    left_out: tuple[tuple[str, int], ...] = ()
    """(reason, number of cells) with a lower share that are left out: "noisy", "disturbed" """
    lowest: float = 1.0
    """the lowest share of all, those included"""


@dataclass(frozen=True)
class Tally:
    """One method over several cases."""

    method: str
    num_cases: int
    """that have a number of it"""
    num_compared: int
    """of these where another method has one, too; all that follows is of them alone"""
    num_clear: int
    """where it leads alone"""
    num_shared: int
    """where it is one of several that are not told apart from the first"""
    num_won: int
    """where a play-off tells it apart from all others"""
    num_could_not: int
    num_not_asked: int
    num_other_protocol: int
    """where it has a number that is not compared: see `Standing.other_protocol`"""
    mean: float
    """geometric mean of its shares; 0 if it was never compared"""
    worst: WorstShare | None
    """None if it was never compared"""

    @property
    def num_leading(self) -> int:
        return self.num_clear + self.num_shared


def tallies(
    standings: Mapping[Any, Standing], also: Mapping[Any, Standing] | None = None, reason: str = "not counted"
) -> list[Tally]:
    """Those with the most cases first, then by the mean of their shares, then by name.

    Args:
        standings: by a key that names the case.
        also: further cases that are shown, but do not count. Their methods have a tally all the same, and
            worst shares say what they leave out there.
        reason: why they do not count, in a word or two.
    """
    aside = also or {}
    methods = sorted(
        {entry.method for case in (*standings.values(), *aside.values()) for entry in case.entries}
        | {method for case in standings.values() for method in case.other_protocol}
    )
    counted = [_tally(method, standings, aside, reason) for method in methods]
    return sorted(counted, key=lambda tally: (-tally.num_cases, -tally.mean, tally.method))


def num_open(standings: Mapping[Any, Standing]) -> int:
    """Number of cases in which no method leads alone though several ran."""
    return sum(case.is_compared and not case.is_clear for case in standings.values())


def num_played_off(standings: Mapping[Any, Standing]) -> int:
    return sum(case.played_off for case in standings.values())


def reason_to_leave_out(point: MeasuredPoint) -> str:
    """The reason why a share of this point measures a delay rather than the method; "" if none is known."""
    return "disturbed" if point.disturbed else "noisy" if point.noise > NOISY else ""


def _tally(
    method: str, standings: Mapping[Any, Standing], aside: Mapping[Any, Standing], reason: str
) -> Tally:
    ran = {key: entry for key, case in standings.items() if (entry := case.entry(method))}
    compared = {key: entry for key, entry in ran.items() if standings[key].is_compared}
    others = [entry.share for case in aside.values() if case.is_compared and (entry := case.entry(method))]
    leading = [standings[key] for key in compared if method in standings[key].leaders]
    mean = exp(sum(log(entry.share) for entry in compared.values()) / len(compared)) if compared else 0.0
    clear = sum(case.is_clear for case in leading)
    return Tally(
        method,
        len(ran),
        len(compared),
        clear,
        len(leading) - clear,
        sum(case.winner == method for case in leading),
        sum(method in case.could_not for case in standings.values()),
        sum(
            method not in case.could_not and method not in case.other_protocol and not case.entry(method)
            for case in standings.values()
        ),
        sum(method in case.other_protocol for case in standings.values()),
        mean,
        _worst(compared, {reason: others}),
    )


def _worst(compared: Mapping[Any, RankedMethod], aside: Mapping[str, Sequence[float]]) -> WorstShare | None:
    """The worst share of the cases, with what is lower: noisy results, and shares that stand aside for a
    reason."""
    if not compared:
        return None
    reasons = {key: reason_to_leave_out(entry.point) for key, entry in compared.items()}
    judged = [key for key in compared if not reasons[key]] or list(compared)
    where = min(judged, key=lambda key: compared[key].share)
    share = compared[where].share
    shares = [(reasons[key], compared[key].share) for key in compared if key not in judged]
    shares += [(reason, other) for reason, others in aside.items() for other in others]
    lower = [(reason, other) for reason, other in shares if other < share]
    counts = Counter(reason for reason, _ in lower)
    return WorstShare(
        share, where, tuple(sorted(counts.items())), min((other for _, other in lower), default=share)
    )
