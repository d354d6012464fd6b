"""Standings of figures' points, and the setting at which each case is judged."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from longca.lab.ranking import MeasuredPoint, Measurement, Standing, standing, tallies
from longca.lab.ranking.sentences import basis_text, leads_text
from longca.lab.ranking.table import ABSENT
from longca.lab.report.series import POINT, rate_unit
from longca.lab.store.text import number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import pandas as pd


def standings_of(data: pd.DataFrame, by: Sequence[str]) -> dict[tuple[Any, ...], Standing]:
    """The standing of each case of points, by the values of `by`, without cases that have no number.

    Args:
        data: points (`longca.lab.report.series.points`) with a column `method`.
        by: columns that identify a case, including the device model if the data have several.
    """
    points: dict[tuple[Any, ...], list[MeasuredPoint]] = defaultdict(list)
    could_not: dict[tuple[Any, ...], dict[str, str]] = defaultdict(dict)
    rows = data.to_dict("records")
    for row in rows:
        key = tuple(row[name] for name in by)
        point = _point(row)
        if point:
            points[key].append(point)
        elif row.get("status", "ok") not in ("ok", ABSENT):
            could_not[key].setdefault(str(row["method"]), str(row["status"]))
    methods = sorted({str(row["method"]) for row in rows})
    return {
        key: standing(
            of_case,
            could_not[key],
            [
                name
                for name in methods
                if name not in could_not[key] and all(point.method != name for point in of_case)
            ],
        )
        for key, of_case in points.items()
    }


def at_largest(standings: Mapping[tuple[Any, ...], Standing]) -> dict[tuple[Any, ...], tuple[Any, Standing]]:
    """(last value, standing) for each group of keys that differ only in their last value.

    It is the largest value with at least two methods, or else the largest value, whose method has no rival.
    """
    chosen: dict[tuple[Any, ...], tuple[Any, Standing]] = {}
    for key, case in standings.items():
        other = chosen.get(key[:-1])
        if other is None or (case.is_compared, key[-1]) > (other[1].is_compared, other[0]):
            chosen[key[:-1]] = key[-1], case
    return chosen


def leaders_text(standings: Mapping[Any, Standing], thing: str) -> str:
    """The numbers of leads, formatted by `longca.lab.ranking.sentences.leads_text`, or the rates if no two
    methods ran the same; separately for each device model."""
    of_devices: dict[str, dict[Any, Standing]] = defaultdict(dict)
    for key, case in standings.items():
        of_devices[case.device][key] = case
    if len(of_devices) < 2:
        return _leads(standings, thing)
    return "; ".join(f"on {device} {_leads(of_device, thing)}" for device, of_device in of_devices.items())


def place_text(standings: Mapping[Any, Standing], place: str) -> str:
    """The place at which each case was judged, and its rivals: "each at the longest length that two or more
    ran, against 3 to 12 others, by up to 1.4×"."""
    basis = basis_text(standings)
    if basis:
        return f"each at the {place} that two or more ran, {basis}"
    return f"each at its {place}" if standings else ""


def uncompared_text(methods: Iterable[str]) -> str:
    """Tells that there is no comparison of these methods: "only band ran"."""
    names = sorted(set(methods))
    return f"only {names[0]} ran" if len(names) == 1 else "no two methods ran the same"


def span_text(values: Iterable[float], text: Callable[[float], str] = number) -> str:
    """The least and the largest value: "512 to 641"."""
    ends = list(values)
    return " to ".join(dict.fromkeys(text(end) for end in (min(ends), max(ends))))


def _leads(standings: Mapping[Any, Standing], thing: str) -> str:
    if not standings or any(case.is_compared for case in standings.values()):
        return leads_text(standings, thing)
    rates = [case.first.rate for case in standings.values()]
    unit = rate_unit(max(rates))
    span = span_text(rate * unit.factor for rate in rates)
    return f"{uncompared_text(case.first.method for case in standings.values())}, {span} {unit.name}"


def leaders(data: pd.DataFrame, by: Sequence[str], most: int = 4) -> list[str]:
    """The methods that lead most often, alone or in a tie; ties by count are sorted by mean share, then by
    name."""
    ordered = sorted(
        tallies(standings_of(data, by)), key=lambda tally: (-tally.num_leading, -tally.mean, tally.method)
    )
    return [tally.method for tally in ordered[:most]]


def _point(row: Mapping[Any, Any]) -> MeasuredPoint | None:
    """The point of a row; if it has none, a point from its numbers."""
    if POINT in row:
        return row[POINT] if isinstance(row[POINT], MeasuredPoint) else None
    value = float(row["value"])
    if not value > 0:
        return None
    low, high = (float(row.get(name, value)) for name in ("low", "high"))
    return MeasuredPoint(
        str(row["method"]),
        (
            Measurement(
                value, low, high, device=str(row.get("device", "")), noise=float(row.get("noise", 0.0))
            ),
        ),
    )
