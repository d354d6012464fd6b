"""Standings: the order of all methods in one case, who leads, and who could not or was not asked."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log

from longca.lab.ranking.lead import Lead, compare, mean_lead
from longca.lab.ranking.measurement import Measurement
from longca.lab.ranking.point import MeasuredPoint
from longca.lab.ranking.protocol import competing
from longca.lab.ranking.relation import Relation
from longca.lab.ranking.resolution import Resolutions


@dataclass(frozen=True)
class RankedMethod:
    """One method in a standing."""

    method: str
    place: int
    """1 is the first"""
    rate: float
    """median over seeds; for a mean over cases, the geometric mean"""
    low: float
    high: float
    """by the samples of all seeds; for a mean over cases, the lowest and the highest case"""
    share: float
    """of the first's rate, from 0 to 1"""
    behind: Lead | None
    """the first's lead over it; None for the first"""
    point: MeasuredPoint
    is_tied: bool = False
    """it is not the first and not told apart from it; where there was a play-off, in this alone"""
    in_playoff: bool = False

    @property
    def scatters(self) -> bool:
        """It is tied only because samples scatter: the medians differ by more than repeats do."""
        lead = self.behind
        return self.is_tied and lead is not None and abs(lead.log_ratio) > lead.log_resolution


@dataclass(frozen=True)
class Standing:
    """All methods in one case, the best first, on devices of one model."""

    entries: tuple[RankedMethod, ...]
    could_not: Mapping[str, str] = field(default_factory=dict)
    """method → status of what was tried there and has no number"""
    not_asked: tuple[str, ...] = ()
    """methods of the study without a record there, or that are not installed"""
    num_cases: int = 1
    """over which it is a mean"""
    other_protocol: Mapping[str, MeasuredPoint] = field(default_factory=dict)
    """method → its point, of those that are not compared: they were measured without rests of the GPU and the
    others with them, or the other way round"""
    num_rested: int = 0
    """of its cases: those whose methods compete by measurements with rests"""

    @property
    def first(self) -> RankedMethod:
        return self.entries[0]

    @property
    def second(self) -> RankedMethod | None:
        return self.entries[1] if len(self.entries) > 1 else None

    @property
    def leaders(self) -> tuple[str, ...]:
        """The first, and all that are not told apart from it."""
        return (self.first.method, *(entry.method for entry in self.entries[1:] if entry.is_tied))

    @property
    def lead(self) -> Lead | None:
        """The first's lead over the next method; None if it is alone."""
        return self.second.behind if self.second else None

    @property
    def is_compared(self) -> bool:
        """Two methods or more have a number. A case without is counted for nobody."""
        return len(self.entries) > 1

    @property
    def is_clear(self) -> bool:
        """The first is told apart from all others."""
        return self.is_compared and len(self.leaders) == 1

    @property
    def played_off(self) -> bool:
        """The first and the second were timed in turn in one process; else there is a leading group, and no
        winner."""
        return self.is_compared and self.first.in_playoff

    @property
    def winner(self) -> str:
        """The method that a play-off tells apart from all others; "" without a play-off, and in a tie."""
        return self.first.method if self.played_off and self.is_clear else ""

    @property
    def relation(self) -> Relation | None:
        """That of the first and the second."""
        return self.lead.relation if self.lead else None

    @property
    def device(self) -> str:
        """The model of all its devices."""
        return self.first.point.device

    @property
    def num_units(self) -> int:
        """Number of devices that measured the first two; 0 if none is known."""
        return len({unit for entry in self.entries[:2] for unit in entry.point.units if unit})

    @property
    def rests(self) -> bool:
        """All methods compete by measurements with rests of the GPU."""
        return self.num_rested == self.num_cases

    @property
    def is_mixed(self) -> bool:
        """It is a mean over cases with rests and cases without."""
        return 0 < self.num_rested < self.num_cases

    @property
    def shared_draws(self) -> dict[int, bool]:
        """Seed → whether the first has the highest rate there, of the draws that it and another method
        have."""
        rates = [{record.seed: record.rate for record in entry.point.best_known} for entry in self.entries]
        others = {
            seed: [of_other[seed] for of_other in rates[1:] if seed in of_other] for seed in sorted(rates[0])
        }
        return {seed: rates[0][seed] >= max(of_seed) for seed, of_seed in others.items() if of_seed}

    def entry(self, method: str) -> RankedMethod | None:
        return next((entry for entry in self.entries if entry.method == method), None)


def standing(
    points: Sequence[MeasuredPoint],
    could_not: Mapping[str, str] | None = None,
    not_asked: Sequence[str] = (),
    resolutions: Resolutions | None = None,
) -> Standing:
    """The standing of one case.

    If two methods or more were in a play-off, the first is found among them by their play-off alone; other
    methods come after them, by their own measurements beside the first's. Equal rates stand in the order of
    their names. Measurements with rests and without never meet: see `longca.lab.ranking.protocol`.

    Args:
        points: one a method, at least one.
        could_not: method → status, of those that have no number.
        not_asked: methods without a record there.
        resolutions: as of `compare`.

    Raises:
        ValueError: there are no points, or they are of several models of devices.
    """
    if len({point.device for point in points}) != 1:
        raise ValueError("a standing needs points, all of one model of device")
    competition = competing(points)
    players = _players(competition.points)
    names = {point.method for point in players}
    others = [point.by_itself() for point in competition.points if point.method not in names]
    ordered = _ordered(players) + _ordered(others)
    first = ordered[0]
    beside = _beside_others(ordered, names, competition.rests)
    left_out = {point.method: point for point in competition.left_out}
    if beside is None:
        left_out |= {point.method: point for point in others}
        ordered = _ordered(players)
    entries: list[RankedMethod] = []
    for rank, point in enumerate(ordered, 1):
        playing = point.method in names
        rival = first if playing or beside is None else beside.by_itself()
        lead = compare(rival, point, resolutions) if rank > 1 else None
        share = min(1 / lead.ratio, 1.0) if lead else 1.0
        if not playing and beside is not None and beside is not first:  # the first has no such cells
            share *= next(entry.share for entry in entries if entry.method == beside.method)
        if not playing and entries:  # those that did not play are behind those that did
            share = min(share, entries[-1].share)
        low, high = _range(point.best_known)
        is_tied = lead is not None and lead.is_tie and playing == bool(players)
        entries.append(
            RankedMethod(point.method, rank, point.rate, low, high, share, lead, point, is_tied, playing)
        )
    return Standing(
        tuple(entries),
        {method: status for method, status in (could_not or {}).items() if method not in left_out},
        tuple(method for method in not_asked if method not in left_out),
        other_protocol=dict(sorted(left_out.items())),
        num_rested=int(competition.rests),
    )


def mean_standing(standings: Sequence[Standing]) -> Standing | None:
    """The standing by the geometric mean over cases, of the methods that have a number in all of them. None
    if none has, or no case.

    Cases of one model of device. `could_not` has the methods that could not run one of them, with the first
    such status; `other_protocol` those that were measured by another protocol there; `not_asked` those that
    were not asked there.
    """
    methods = dict.fromkeys(entry.method for case in standings for entry in case.entries)
    complete = {method: [entry for case in standings if (entry := case.entry(method))] for method in methods}
    ranked = {method: parts for method, parts in complete.items() if len(parts) == len(standings)}
    if not ranked:
        return None
    means = {
        method: exp(sum(log(entry.rate) for entry in parts) / len(parts)) for method, parts in ranked.items()
    }
    order = sorted(ranked, key=lambda method: (-means[method], method))
    entries = []
    for rank, method in enumerate(order, 1):
        parts = ranked[method]
        lead = (
            mean_lead(
                [
                    compare(best.point, entry.point)
                    for best, entry in zip(ranked[order[0]], parts, strict=True)
                ]
            )
            if rank > 1
            else None
        )
        entries.append(
            RankedMethod(
                method,
                rank,
                means[method],
                min(entry.rate for entry in parts),
                max(entry.rate for entry in parts),
                min(means[method] / means[order[0]], 1.0),
                lead,
                parts[0].point,
                lead is not None and lead.is_tie,
                all(entry.in_playoff for entry in parts),
            )
        )
    could_not = {
        method: case.could_not[method]
        for case in reversed(standings)
        for method in case.could_not
        if method not in ranked
    }
    lacking = set(could_not) | set(ranked)
    other_protocol = {
        method: point
        for case in reversed(standings)
        for method, point in case.other_protocol.items()
        if method not in lacking
    }
    not_asked = {method for case in standings for method in case.not_asked} | set(methods)
    return Standing(
        tuple(entries),
        could_not,
        tuple(sorted(not_asked - lacking - set(other_protocol))),
        len(standings),
        other_protocol,
        sum(case.num_rested for case in standings),
    )


def _beside_others(
    ordered: Sequence[MeasuredPoint], players: Collection[str], rests: bool
) -> MeasuredPoint | None:
    """The point beside which those that did not play are compared: the first with measurements of their
    protocol. None if only play-offs of the other protocol are known of all that come before them."""
    if not players:
        return ordered[0]
    return next(
        (
            point
            for point in ordered
            if point.method in players
            and any(measured.rests == rests for measured in point.by_itself().best_known)
        ),
        None,
    )


def _players(points: Sequence[MeasuredPoint]) -> list[MeasuredPoint]:
    """The points of the play-off that most of them were in; none if it has fewer than two players."""
    ids: dict[str, list[MeasuredPoint]] = {}
    for point in points:
        for record in point.playoffs:
            ids.setdefault(record.playoff, []).append(point)
    largest = max(ids.values(), key=len, default=[])
    reached = {id(point) for point in largest}
    for members in ids.values():  # of other seeds, where they have players in common
        if any(id(point) in reached for point in members):
            reached |= {id(point) for point in members}
    players = [point for point in points if id(point) in reached]
    return players if len(players) > 1 else []


def _ordered(points: Sequence[MeasuredPoint]) -> list[MeasuredPoint]:
    return sorted(points, key=lambda point: (-point.rate, point.method))


def _range(measurements: Sequence[Measurement]) -> tuple[float, float]:
    return min(record.low for record in measurements), max(record.high for record in measurements)
