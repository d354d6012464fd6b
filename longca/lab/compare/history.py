"""History: each method over several versions of the software that it runs on, as records note it.

A history is of one method, direction, model of GPU and protocol. These are never put together.
"""

from __future__ import annotations

import string
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, isinf, log, log1p
from typing import Any, Literal, NamedTuple

from longca.core import Hardware, load_hardware
from longca.lab.compare.pairs import RecordPair, latest_record, resolutions_of
from longca.lab.compare.side import Side, of_record
from longca.lab.compare.verdict import Rule, judge
from longca.lab.ranking import Lead, Resolutions, mean_lead
from longca.lab.report.content.method_notes import packages_of
from longca.lab.store import View
from longca.lab.studies import Cell, Record

Software = tuple[tuple[str, str], ...]
"""(name, version) of what a method runs on, by name; empty if it is not known"""
BELOW = ("triton",)  # torch brings it, and kernels are compiled by it, whatever else they need


class HistorySource(NamedTuple):
    """The records that a user named together."""

    name: str
    records: Sequence[Record]


@dataclass(frozen=True)
class Version:
    """One version of a method: its records of one source that ran with the same software."""

    letter: str
    """of the source: A for the first; with a number where a source holds several versions"""
    source: str
    software: Software
    first: str
    last: str
    """days of its shared cells"""
    commits: tuple[str, ...]
    """of longca, that measured the shared cells; "+" marks changes that were not committed"""
    tflops: float | None
    """rate per device, geometric mean over the shared cells; None without a rate"""
    lead: Lead | None
    """its rate over that of the first version, geometric mean over the shared cells; None for the first"""

    @property
    def is_open(self) -> bool:
        """True if too few repeats are known to tell it apart from the first version."""
        return self.lead is not None and isinf(self.lead.log_resolution)

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Its rate over that of the first version as the tie rule bounds it; None for the first, and where it
        is open."""
        return None if self.lead is None or self.is_open else (self.lead.low, self.lead.high)

    def order(self, rule: Rule) -> Literal["first", "faster", "slower", "same"]:
        """Its rate beside the first version's, by the tie rule and the user's tolerance."""
        if self.lead is None:
            return "first"
        if self.lead.is_tie or abs(self.lead.log_ratio) <= log1p(rule.tolerance or 0.0):
            return "same"
        return "faster" if self.lead.order == "more" else "slower"


@dataclass(frozen=True)
class MethodHistory:
    """The versions of one method in one direction, on one model of GPU, by one protocol."""

    method: str
    direction: str
    device: str
    rests: bool | None
    """True if the GPU rested after each call; None where there is no such protocol, as on a CPU"""
    is_control: bool
    num_cells: int
    """that all versions share: timed, with the same mask"""
    num_unshared: int
    """cells that were timed in one version or more, but not in all of them"""
    versions: tuple[Version, ...]
    left_out: tuple[str, ...] = ()
    """letters of versions that have no cell in common with the others"""

    @property
    def last(self) -> Version:
        return self.versions[-1]

    @cached_property
    def changing(self) -> tuple[str, ...]:
        """The software whose versions differ."""
        names = dict.fromkeys(name for version in self.versions for name, _ in version.software)
        return tuple(
            name for name in names if len({dict(version.software).get(name) for version in self.versions}) > 1
        )

    def as_dict(self, rule: Rule) -> dict[str, Any]:
        """For JSON. Rates relative to the first version's have `low` and `high` by the tie rule."""
        return {
            "method": self.method,
            "direction": self.direction,
            "device": self.device,
            "rests": self.rests,
            "is_control": self.is_control,
            "num_cells": self.num_cells,
            "num_unshared": self.num_unshared,
            "left_out": list(self.left_out),
            "versions": [
                {
                    "letter": version.letter,
                    "source": version.source,
                    "software": dict(version.software),
                    "first": version.first,
                    "last": version.last,
                    "commits": list(version.commits),
                    "tflops_per_device": version.tflops,
                    "ratio": version.lead.ratio if version.lead else 1.0,
                    "low": version.bounds and version.bounds[0],
                    "high": version.bounds and version.bounds[1],
                    "order": version.order(rule),
                    "relation": version.lead and version.lead.relation,
                }
                for version in self.versions
            ],
        }


@dataclass(frozen=True)
class Histories:
    """All methods of several sources."""

    names: tuple[str, ...]
    """of the sources, A first"""
    entries: tuple[MethodHistory, ...]
    """with two versions or more, by method"""
    alone: Mapping[str, int]
    """reason why there is no history → number of methods and directions"""
    rule: Rule

    @property
    def letters(self) -> tuple[str, ...]:
        """A for the first source, and so on."""
        return tuple(_letter(index, len(self.names)) for index in range(len(self.names)))

    @property
    def attention(self) -> tuple[MethodHistory, ...]:
        """The entries without controls."""
        return tuple(entry for entry in self.entries if not entry.is_control)

    @property
    def controls(self) -> tuple[MethodHistory, ...]:
        """Those that only characterise the machine."""
        return tuple(entry for entry in self.entries if entry.is_control)

    def as_dict(self) -> dict[str, Any]:
        """All of it for JSON."""
        return {
            "sources": dict(zip(self.letters, self.names, strict=True)),
            "tolerance": self.rule.tolerance,
            "histories": [entry.as_dict(self.rule) for entry in self.attention],
            "controls": [entry.as_dict(self.rule) for entry in self.controls],
            "without_history": dict(self.alone),
        }


class _Group(NamedTuple):
    """The part that is never put together with another one."""

    method: str
    direction: str
    device: str
    rests: bool | None


class _Judge(NamedTuple):
    """The rule by which two results are compared."""

    rule: Rule = Rule()
    resolutions: Resolutions | None = None

    def lead(self, first: Side, other: Side) -> Lead | None:
        """The other's rate over the first's; None where the two cannot be compared."""
        return judge(RecordPair(first, other), self.rule, self.resolutions).lead


_JUDGE = _Judge()  # of whether two results can be compared at all


@dataclass(frozen=True)
class _Measured:
    """A version's timed results, before it is known which cells are shared."""

    letter: str
    source: str
    software: Software
    results: Mapping[str, tuple[Record, Side]]
    """cell → the last record of it, and its facts"""


def histories(
    sources: Sequence[HistorySource], *, rule: Rule | None = None, hardware: Hardware | None = None
) -> Histories:
    """The history of each method over these sources, in their order.

    A source whose records of a method ran with several versions of its software counts as several versions,
    in the order of their start. Only cells count that all versions have timed, with the same mask. A version
    that shares no cell with the others is left out.

    Args:
        hardware: peak rates; those of `config/hardware.yaml` if not given.
    """
    known = load_hardware() if hardware is None else hardware
    groups: dict[_Group, list[_Measured]] = defaultdict(list)
    for index, source in enumerate(sources):
        for group, measured in _versions_of(_letter(index, len(sources)), source, known):
            groups[group].append(measured)
    chosen = rule or Rule()
    judged = _Judge(chosen, resolutions_of((source.records for source in sources), known))
    entries: list[MethodHistory] = []
    alone: dict[str, int] = defaultdict(int)
    for group in sorted(groups, key=_order):
        measured = groups[group]
        if len(measured) < 2:
            alone["only one version was measured on that GPU by that protocol"] += 1
            continue
        history = _history(group, measured, judged)
        if history is None:
            alone["no two versions timed the same cell under the same mask"] += 1
        else:
            entries.append(history)
    return Histories(tuple(source.name for source in sources), tuple(entries), dict(alone), chosen)


def _versions_of(letter: str, source: HistorySource, hardware: Hardware) -> list[tuple[_Group, _Measured]]:
    """The versions in one source, by method, direction, GPU and protocol, in the order of their start."""
    by_version: dict[tuple[_Group, Software], dict[str, Record]] = defaultdict(dict)
    packages: dict[tuple[str, str | None], tuple[str, ...]] = {}
    for record in source.records:
        view = View(record, hardware)
        if record.outcome.status != "ok" or not view.median_ms or record.cell.kernel == "control":
            continue
        cell = record.cell
        key = cell.kernel, cell.strategy
        if key not in packages:
            packages[key] = _packages(cell)
        group = _Group(cell.method, cell.direction, view.device, view.rests)
        cells = by_version[group, _software(view, packages[key])]
        before = cells.get(record.cell_id)
        cells[record.cell_id] = latest_record([record, before]) if before else record
    ordered = sorted(
        by_version, key=lambda key: min(record.started_at for record in by_version[key].values())
    )
    counts: dict[_Group, int] = defaultdict(int)
    for group, _ in ordered:
        counts[group] += 1
    numbers: dict[_Group, int] = defaultdict(int)
    versions: list[tuple[_Group, _Measured]] = []
    for group, software in ordered:
        numbers[group] += 1
        sides = {
            cell_id: (record, of_record(record, hardware))
            for cell_id, record in by_version[group, software].items()
        }
        name = f"{letter}{numbers[group]}" if counts[group] > 1 else letter
        versions.append((group, _Measured(name, source.name, software, sides)))
    return versions


def _history(group: _Group, measured: Sequence[_Measured], judged: _Judge) -> MethodHistory | None:
    """None if no two versions share a cell."""
    remaining = list(measured)
    left_out = []
    shared = _shared(remaining)
    while not shared and len(remaining) > 2:
        stray = min(reversed(remaining), key=lambda version: _ties(version, remaining))
        remaining.remove(stray)
        left_out.append(stray.letter)
        shared = _shared(remaining)
    if not shared:
        return None
    timed = {cell_id for version in remaining for cell_id in version.results}
    return MethodHistory(
        *group,
        remaining[0].results[shared[0]][1].is_control,
        len(shared),
        len(timed) - len(shared),
        tuple(
            _version(version, remaining[0] if index else None, shared, judged)
            for index, version in enumerate(remaining)
        ),
        tuple(sorted(left_out)),
    )


def _ties(version: _Measured, versions: Sequence[_Measured]) -> tuple[int, int]:
    """(number of other versions with a cell of this one, number of its cells)."""
    cells = set(version.results)
    others = (other for other in versions if other is not version)
    return sum(not cells.isdisjoint(other.results) for other in others), len(cells)


def _shared(versions: Sequence[_Measured]) -> list[str]:
    """The cells that all versions have timed, by the same mask."""
    first, *others = versions
    common = set(first.results).intersection(*(version.results for version in others))
    return sorted(
        cell_id
        for cell_id in common
        if all(_JUDGE.lead(first.results[cell_id][1], version.results[cell_id][1]) for version in others)
    )


def _version(version: _Measured, first: _Measured | None, shared: Sequence[str], judged: _Judge) -> Version:
    results = [version.results[cell_id] for cell_id in shared]
    days = sorted(record.started_at[:10] for record, _ in results)
    rates = [side.tflops.middle for _, side in results if side.tflops]
    leads = [
        lead
        for cell_id in (shared if first else ())
        if first and (lead := judged.lead(first.results[cell_id][1], version.results[cell_id][1]))
    ]
    return Version(
        version.letter,
        version.source,
        version.software,
        days[0],
        days[-1],
        _commits(record for record, _ in results),
        exp(sum(map(log, rates)) / len(rates)) if len(rates) == len(results) else None,
        mean_lead(leads) if leads else None,
    )


def _packages(cell: Cell) -> tuple[str, ...]:
    names = [("kernel", cell.kernel), *([("strategy", cell.strategy)] if cell.strategy else [])]
    needed = [package for kind, name in names for package in packages_of(kind, name)]
    return tuple(dict.fromkeys((*needed, *BELOW)))


def _software(view: View, packages: Iterable[str]) -> Software:
    """The software of a record: these packages, the libraries that torch brings, and the driver."""
    software = view.software
    if software is None:
        return ()
    driver = view.node.gpu.get("driver") if view.node else None
    facts: dict[str, object] = {
        **{name: software.packages.get(name) for name in packages},
        "CUDA": software.cuda,
        "cuDNN": software.cudnn,
        "NCCL": software.nccl if view.cell.kind == "cp" else None,
        "driver": driver,
    }
    return tuple((name, str(version)) for name, version in facts.items() if version)


def _commits(records: Iterable[Record]) -> tuple[str, ...]:
    sources = (record.environment.source for record in records if record.environment)
    return tuple(
        sorted({f"{one.git_sha[:10]}{'+' if one.git_dirty else ''}" for one in sources if one.git_sha})
    )


def _letter(index: int, count: int) -> str:
    return string.ascii_uppercase[index] if count <= len(string.ascii_uppercase) else f"{index + 1}."


def _order(group: _Group) -> tuple[Any, ...]:
    return group.method, group.device, not group.rests, group.direction == "bwd"
