"""Leads: by how much one point is ahead of another, and whether that means anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, log
from statistics import median
from typing import Literal

from longca.lab.ranking.measurement import Measurement
from longca.lab.ranking.point import MeasuredPoint
from longca.lab.ranking.protocol import common_protocol
from longca.lab.ranking.relation import Relation, relation_of, widest
from longca.lab.ranking.resolution import Resolution, Resolutions
from longca.lab.studies.samples import median_bounds


@dataclass(frozen=True)
class Lead:
    """The rate of a first point over that of a second, in logarithms; ratios follow."""

    log_ratio: float
    below: float
    above: float
    """half-widths of its interval by the samples of both"""
    log_resolution: float
    """up to which it means nothing: the resolution, for as many cells as were compared"""
    relation: Relation
    """the farthest of the measurements that were compared"""
    resolution: Resolution
    rests: bool = False
    """all measurements that were compared are of calls with rests"""

    @property
    def ratio(self) -> float:
        return exp(self.log_ratio)

    @property
    def low(self) -> float:
        """The least ratio that samples and repeats allow."""
        return exp(self.log_ratio - max(self.below, self.log_resolution))

    @property
    def high(self) -> float:
        return exp(self.log_ratio + max(self.above, self.log_resolution))

    @property
    def is_tie(self) -> bool:
        """The two are not told apart: by repeats of identical cells or by their own samples, they may be
        equal."""
        return (
            self.log_ratio - max(self.below, self.log_resolution)
            <= 0
            <= self.log_ratio + max(self.above, self.log_resolution)
        )

    @property
    def order(self) -> Literal["more", "less", "same"]:
        """The first's rate beside the second's."""
        return "same" if self.is_tie else "more" if self.log_ratio > 0 else "less"


def compare(
    first: MeasuredPoint,
    second: MeasuredPoint,
    resolutions: Resolutions | None = None,
    relation: Relation | None = None,
) -> Lead:
    """The lead of the first point over the second; below 1 if it is behind.

    If both were in the same play-offs, these alone count. Else measurements with rests count if both have
    such, or those without. If there are several seeds, only the seeds that both have count, if they share
    any. Points of two protocols are never ranked against each other (`longca.lab.ranking.protocol`). If
    they are compared nevertheless, as a record with a published rate is, the resolution is the wider one:
    that of calls without rests.

    Args:
        resolutions: those of the points if not given, and without them those of the package.
        relation: in place of that which the measurements show.
    """
    known = resolutions or first.resolutions or second.resolutions or Resolutions.known()
    pairs = _matched(first, second)
    farthest = relation or widest([relation_of(own, other) for own, other in pairs])
    rested = {record.rests for pair in pairs for record in pair}
    rests = rested == {True}
    resolution = known.of(first.device, farthest, rests)
    if farthest == "other model":
        other = known.of(second.device, farthest, rests)
        is_foreign = resolution.is_foreign and other.is_foreign
        resolution = replace(max(resolution, other, key=_width), is_foreign=is_foreign)
    if len(rested) > 1:
        resolution = max(resolution, known.of(first.device, farthest, rests=True), key=_width)
        resolution = replace(resolution, is_mixed=True)
    ratio = median(own.rate for own, _ in pairs) / median(other.rate for _, other in pairs)
    widths = [interval_widths(own, other) for own, other in pairs]
    return Lead(
        log(ratio),
        _of_mean([below for below, _ in widths]),
        _of_mean([above for _, above in widths]),
        resolution.of_mean(sum(min(own.num_independent, other.num_independent) for own, other in pairs)),
        farthest,
        resolution,
        rests,
    )


def mean_lead(leads: Sequence[Lead]) -> Lead:
    """The geometric mean of leads in several cases. Its resolution follows from theirs: what devices have in
    common does not average out.

    Raises:
        ValueError: there are no leads.
    """
    if not leads:
        raise ValueError("a mean of no leads")
    farthest = widest([lead.relation for lead in leads])
    resolution = max((lead.resolution for lead in leads if lead.relation == farthest), key=_width)
    if any(lead.resolution.is_mixed for lead in leads):
        resolution = replace(resolution, is_mixed=True)
    mean_resolution = sum(lead.log_resolution for lead in leads) / len(leads)
    return Lead(
        sum(lead.log_ratio for lead in leads) / len(leads),
        _of_mean([lead.below for lead in leads]),
        _of_mean([lead.above for lead in leads]),
        mean_resolution * resolution.of_mean(len(leads)) / resolution.log_ratio
        if resolution.log_ratio
        else 0.0,
        farthest,
        resolution,
        all(lead.rests for lead in leads),
    )


def _matched(first: MeasuredPoint, second: MeasuredPoint) -> list[tuple[Measurement, Measurement]]:
    """The measurements that are compared: of shared play-offs, else of one protocol and shared seeds, else
    each with each."""
    played = {record.playoff: record for record in first.playoffs}
    alternated = [(played[other.playoff], other) for other in second.playoffs if other.playoff in played]
    if alternated:
        return alternated
    own = first.measurements or first.playoffs
    others = second.measurements or second.playoffs
    rests = common_protocol(own, others)
    if rests is not None:
        own, others = (tuple(record for record in of if record.rests == rests) for of in (own, others))
    seeds = {record.seed: record for record in own}
    shared = [(seeds[other.seed], other) for other in others if other.seed in seeds]
    return shared or [(record, other) for record in own for other in others]


def interval_widths(first: Measurement, second: Measurement) -> tuple[float, float]:
    """Half-widths of the interval of a ratio's logarithm.

    Samples that alternated are compared round by round. Of others the widths of both intervals add as
    independent errors do (MOVER).
    """
    rounds = rounds_of_both(first, second)
    if rounds:
        middle = log(first.rate / second.rate)
        ratios = [log(other / own) for own, other in rounds]
        # rates may count other work than calls do: the ratio of the medians says how much
        shift = middle - log(median(second.times_ms) / median(first.times_ms))
        low, high = median_bounds(ratios)
        return max(middle - low - shift, 0.0), max(high + shift - middle, 0.0)
    below = log(first.rate / first.low) ** 2 + log(second.high / second.rate) ** 2
    above = log(first.high / first.rate) ** 2 + log(second.rate / second.low) ** 2
    return below**0.5, above**0.5


def rounds_of_both(first: Measurement, second: Measurement) -> list[tuple[float, float]]:
    """The times of both in each round that both played; none if they were not in one play-off."""
    if not first.playoff or first.playoff != second.playoff:
        return []
    if not (first.rounds and second.rounds):
        return list(zip(first.times_ms, second.times_ms, strict=False))
    others = dict(zip(second.rounds, second.times_ms, strict=False))
    return [
        (time, others[number])
        for number, time in zip(first.rounds, first.times_ms, strict=False)
        if number in others
    ]


def _width(resolution: Resolution) -> float:
    return resolution.log_ratio


def _of_mean(widths: Sequence[float]) -> float:
    """The half-width of a mean of independent numbers."""
    return sum(width * width for width in widths) ** 0.5 / len(widths)
