"""Totals: the calls of one method in several directions as one measurement, whose time is the sum of theirs.

A total has no samples of its own. Its interval follows from those of its parts, whose errors are independent:
the squares of their half-widths add up. The tie rule is that of single cells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import hypot
from statistics import median

from longca.lab.ranking.measurement import Measurement
from longca.lab.ranking.order import Standing, standing
from longca.lab.ranking.point import MeasuredPoint

NO_RECORD = "no record {}"
NOT_TOGETHER = "no draw was measured {} by one protocol"


def total_measurement(parts: Sequence[Measurement]) -> Measurement | None:
    """The total of measurements with samples, of one method, draw, protocol and model of device; None where
    samples are not known."""
    if not all(part.times_ms for part in parts):
        return None
    times = [median(part.times_ms) for part in parts]
    total = sum(times)
    work = sum(part.rate * time for part, time in zip(parts, times, strict=True))
    pairs = list(zip(parts, times, strict=True))
    longer = hypot(*(time * (part.rate / part.low - 1) for part, time in pairs))
    shorter = hypot(*(time * (1 - part.rate / part.high) for part, time in pairs))
    units = [part.unit for part in parts]
    return Measurement(
        work / total,
        work / (total + longer),
        work / (total - shorter),
        parts[0].device,
        " ".join(units) if all(units) else "",  # equal where the parts of both ran on the same devices
        " ".join(part.run for part in parts),
        seed=parts[0].seed,
        cell_id=" ".join(part.cell_id for part in parts),
        version=" ".join(part.version for part in parts),
        times_ms=(total,),
        noise=max(part.noise for part in parts),
        disturbed=any(part.disturbed for part in parts),
        rests=parts[0].rests,
        parts=tuple(parts),
    )


def total_point(points: Sequence[MeasuredPoint]) -> MeasuredPoint | None:
    """One method's points in several directions as one, of the draws that all have by one protocol, with
    rests if possible; None if there is none.

    Cells measured by themselves count, or without any those of play-offs.
    """
    for rests in (True, False):
        by_seed = [
            {record.seed: record for record in point.measurements or point.playoffs if record.rests == rests}
            for point in points
        ]
        shared = sorted(set.intersection(*map(set, by_seed)))
        totals = [total_measurement([records[seed] for records in by_seed]) for seed in shared]
        known = tuple(total for total in totals if total is not None)
        if known:
            return MeasuredPoint(points[0].method, known, resolutions=points[0].resolutions)
    return None


def total_standing(cases: Mapping[str, Standing]) -> tuple[Standing | None, dict[str, str]]:
    """The standing by the total time of several directions of one case; None if no method has a number in
    all of them. With it, by method, why others are left out.

    Args:
        cases: by direction in words, "forward" and "backward".
    """
    methods = dict.fromkeys(
        method
        for case in cases.values()
        for method in (*(entry.method for entry in case.entries), *case.could_not, *case.other_protocol)
    )
    points: list[MeasuredPoint] = []
    could_not: dict[str, str] = {}
    left_out: dict[str, str] = {}
    for method in methods:
        entries = {way: case.entry(method) for way, case in cases.items()}
        lacking = [way for way, entry in entries.items() if entry is None]
        failed = next((way for way in lacking if method in cases[way].could_not), None)
        total = None if lacking else total_point([entry.point for entry in entries.values() if entry])
        if total is not None:
            points.append(total)
        elif failed is not None:
            could_not[method] = cases[failed].could_not[method]
            left_out[method] = f"{failed} {could_not[method]}"
        elif lacking:
            left_out[method] = NO_RECORD.format(" and ".join(lacking))
        else:
            left_out[method] = NOT_TOGETHER.format(" and ".join(cases))
    not_asked = {method for case in cases.values() for method in case.not_asked} | set(left_out)
    if not points:
        return None, left_out
    others = sorted(not_asked - set(could_not) - {point.method for point in points})
    return standing(points, could_not, others), left_out
