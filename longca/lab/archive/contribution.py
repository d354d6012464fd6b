"""Checks of a file of records before it joins those of the project: `longca records check`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from longca.core import Hardware, Registry, UserError
from longca.lab.ranking import Resolutions, is_plausible, is_told_apart
from longca.lab.ranking.table import pairs_of
from longca.lab.store import View, digest_of
from longca.lab.store.load import committed, load, unmerged
from longca.lab.store.table import derived
from longca.lab.store.text import folder_of_gpu, plural
from longca.lab.studies import SCHEMA_VERSION, Record

if TYPE_CHECKING:
    import pandas as pd

    from longca.lab.store.load import Loaded

CONTROLS = ("control", "matmul", "device_copy")
NOT_TRIED = ("unsupported", "unavailable")  # statuses of cells that nothing measured
State = Literal["ok", "warning", "failed"]


@dataclass(frozen=True)
class RecordCheck:
    """The check of one property of a file of records."""

    name: str
    state: State
    detail: str
    lines: tuple[str, ...] = ()
    """each problem"""


@dataclass(frozen=True)
class _Given:
    """The records of the file, read once."""

    loaded: Loaded
    tried: list[View]
    """views of the records of cells that something measured"""
    table: pd.DataFrame


def check_records(path: Path) -> list[RecordCheck]:
    """All checks of a file of records, or of a folder that has one.

    Raises:
        UserError: there is no such file.
    """
    if not path.exists():
        raise UserError(
            f"There is no file '{path}'", todo="`longca export` writes records.parquet and records.json"
        )
    loaded = unmerged(path)
    records = loaded.all_records
    views = [View(record, Hardware()) for record in records if record.outcome.status not in NOT_TRIED]
    given = _Given(loaded, views, derived(records))
    return [_whole(given), *(check(given) for check in CHECKS)] if records else [_whole(given)]


def _whole(given: _Given) -> RecordCheck:
    """Each row is a valid record with its checksum, and the columns follow from it."""
    records = given.loaded.all_records
    problems = given.loaded.problems
    if not records and not problems:
        return RecordCheck("records", "failed", "there are none")
    counts = Counter(record.outcome.status for record in records)
    statuses = ", ".join(f"{count:,} {status}" for status, count in counts.most_common())
    return _judged(
        "records",
        [str(problem) for problem in problems],
        f"{plural(len(records), 'record')}: {statuses}",
        "row",
    )


def _schema(given: _Given) -> RecordCheck:
    versions = Counter(record.schema_version for record in given.loaded.all_records)
    problems = [
        f"{plural(count, 'record')} of schema {version}: measured by an earlier longca, which noted less"
        for version, count in sorted(versions.items())
        if version != SCHEMA_VERSION
    ]
    return _judged("schema", problems, f"all of schema {SCHEMA_VERSION}", "older schema")


def _names(given: _Given) -> RecordCheck:
    """Kernels, strategies and masks are plug-ins of this longca."""
    cells = [record.cell for record in given.loaded.all_records]
    used = {
        "kernel": {cell.kernel for cell in cells},
        "mask": {cell.mask for cell in cells},
        "strategy": {cell.strategy for cell in cells if cell.strategy},
    }
    problems = [
        f"{kind} '{name}' is not in this longca: contribute its file as well"
        for kind, names in used.items()
        for name in sorted(names - set(Registry(kind).names()))
    ]
    return _judged(
        "names", problems, f"each of {sum(map(len, used.values()))} plug-ins is known", "unknown name"
    )


def _device(given: _Given) -> RecordCheck:
    """One model of GPU: records of two are never in one file."""
    gpus = sorted(_gpus(given.loaded.all_records))
    if not gpus:
        return RecordCheck("GPU", "failed", "no record is of a GPU", ("records of CPUs are not contributed",))
    if len(gpus) > 1:
        lines = tuple(f"{gpu}: give these records a file of their own" for gpu in gpus)
        return RecordCheck("GPU", "failed", f"{len(gpus)} models", lines)
    on_cpu = sum(view.device_type == "cpu" for view in given.tried)
    problems = [f"{plural(on_cpu, 'record')} of a CPU"] if on_cpu else []
    return _judged(
        "GPU", problems, f"{gpus[0]}; the file's folder is reports/{folder_of_gpu(gpus[0])}", "other device"
    )


def _environment(given: _Given) -> RecordCheck:
    """Code and software of each record are known."""
    problems: Counter[str] = Counter()
    for view in given.tried:
        environment = view.record.environment
        if environment is None:
            problems["without an environment"] += 1
            continue
        if not environment.source.git_sha:
            problems[
                "of code without a commit: measure from a clone, or with a wheel that was built from one"
            ] += 1
        elif environment.source.git_dirty:
            problems["of code with changes that are in no commit"] += 1
        if not environment.ranks:
            problems["without digests of the software"] += 1
        elif any(rank.installed not in given.loaded.environments for rank in environment.ranks):
            problems["whose listing of software is not in the file"] += 1
    commits = {view.record.environment.source.git_sha for view in given.tried if view.record.environment}
    lines = [f"{plural(count, 'record')} {what}" for what, count in problems.most_common()]
    return _judged(
        "environment",
        lines,
        f"{plural(len(commits), 'commit')}, each listing of software is there",
        "problem",
    )


def _controls(given: _Given) -> RecordCheck:
    """Each GPU has measured the controls, and the timer passed."""
    units = {unit for view in given.tried if not view.is_control for unit in view.units}
    passed = {
        (view.record.cell.kernel, unit)
        for view in given.tried
        if view.is_control and view.record.outcome.status == "ok"
        for unit in view.units
    }
    lacking = {unit: [name for name in CONTROLS if (name, unit) not in passed] for unit in sorted(units)}
    problems = [
        f"GPU {unit or 'without a UUID'} has no ok record of {', '.join(names)}"
        for unit, names in lacking.items()
        if names
    ]
    wrong = [
        f"{view.record.cell.kernel} is {view.record.outcome.status}: {view.reason}"
        for view in given.tried
        if view.is_control and view.record.outcome.status != "ok"
    ]
    return _judged(
        "controls", [*problems, *wrong], f"{', '.join(CONTROLS)} on {plural(len(units), 'GPU')}", "problem"
    )


def _repeats(given: _Given) -> RecordCheck:
    """A/A: cells that were measured twice do not differ more often than on the GPUs that are known."""
    pairs = pairs_of(given.table)
    if not pairs:
        return RecordCheck(
            "A/A", "failed", "no cell was measured twice", ("`longca run` repeats some by itself",)
        )
    known = Resolutions.known()
    apart = sum(is_told_apart(pair, known) for pair in pairs)
    detail = f"{apart} of {plural(len(pairs), 'pair')} of the same cell are told apart"
    if not is_plausible(len(pairs), apart):
        return RecordCheck(
            "A/A",
            "failed",
            detail,
            ("they differ more than on any known GPU: look for other users or changing clocks",),
        )
    return RecordCheck("A/A", "ok", detail)


def _duplicates(given: _Given) -> RecordCheck:
    """No record is there twice, in the file or among the project's records."""
    gpus = _gpus(given.loaded.all_records)
    present = [record for record in load(*committed()).all_records if not gpus.isdisjoint(_gpus([record]))]
    counts = Counter(map(digest_of, given.loaded.all_records))
    twice = sum(count - 1 for count in counts.values())
    known = len(counts.keys() & set(map(digest_of, present)))
    lines = [f"{plural(twice, 'record')} more than once"] if twice else []
    lines += [f"{plural(known, 'record')} among the project's records already"] if known else []
    own = Counter(record.cell_id for record in given.loaded.records)
    again = len(own.keys() & {record.cell_id for record in present})
    several = sum(count > 1 for count in own.values())
    detail = f"{plural(len(own), 'cell')}, {again:,} of them with records of this GPU in the project"
    if lines or not several:
        return _judged("duplicates", lines, detail, "problem")
    return RecordCheck("duplicates", "warning", detail, (f"{plural(several, 'cell')} with several records",))


def _conditions(given: _Given) -> RecordCheck:
    """Weaknesses that lower the worth of records without making them wrong."""
    timed = [view for view in given.tried if view.samples is not None and not view.is_control]
    counts = {
        "disturbed by other processes": sum(bool(view.disturbance) for view in timed),
        "noisy": sum(view.is_noisy for view in timed),
        "drifting": sum(view.is_drifting for view in timed),
        "without rests of the GPU": sum(
            not view.rests and not view.record.cell.sustained and view.record.cell.kind == "kernel"
            for view in timed
        ),
    }
    hosts = sorted(
        {
            node.hostname
            for view in given.tried
            if view.record.environment
            for node in view.record.environment.nodes
        }
    )
    lines = tuple(
        f"{count:,} of {plural(len(timed), 'timed record')} {what}" for what, count in counts.items() if count
    )
    detail = f"the file names the machine{'s' if len(hosts) != 1 else ''} {', '.join(hosts) or '–'}"
    return RecordCheck("conditions", "warning" if lines else "ok", detail, lines)


CHECKS: tuple[Callable[[_Given], RecordCheck], ...] = (
    _schema,
    _names,
    _device,
    _environment,
    _controls,
    _repeats,
    _duplicates,
    _conditions,
)


def _judged(name: str, problems: Iterable[str], detail: str, noun: str) -> RecordCheck:
    lines = tuple(problems)
    return (
        RecordCheck(name, "failed", plural(len(lines), noun), lines)
        if lines
        else RecordCheck(name, "ok", detail)
    )


def _gpus(records: Iterable[Record]) -> set[str]:
    """The models of GPU that these records name."""
    nodes = (node for record in records if record.environment for node in record.environment.nodes)
    return {str(node.gpu.get("name", "unknown GPU")) for node in nodes if node.gpu}
