"""The freshness of a workflow's stages: by the content of records, not by the times of files.

A job that measures ends with a stamp, the digest of its cells' records. When the workflow starts, it compares
each stamp with the records of now, whoever measured them. The stamp of a job with cells that `longca run`
would measure is removed, so that Snakemake runs the job. A stamp of other records is written again, so that
Snakemake makes the tables and pages again and measures nothing. It follows the repeats of its cells as well.

Play-offs belong to the job that measures all methods of their cases, where there is one: its stamp follows
them, too. On a cluster a job of their own has a stamp of their own.

Snakemake does not remake an intermediate file if the files before and after it exist. So tables have one
more input: `REST` changes where a stamp is missing, and with the records of cells that the study does not
ask for.

A stamp of now is older than a table from a clock that was ahead, or that was touched or copied since. So
tables and pages come with notes of what they were made of (`longca.lab.store.beside.made`). Those that are
not the files of their note, or not of the records of now, get the oldest time, and one more input.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

from longca.core import UserError
from longca.lab.bench.measure.environment import CONTAINER, NVIDIA_DRIVER, cpu_name
from longca.lab.bench.plan.shards import Shard
from longca.lab.bench.run.method_version import MethodVersions
from longca.lab.bench.run.players import due_playoffs, playoffs_of
from longca.lab.store import CellStore, PlayoffStore, replace_file
from longca.lab.store.beside.made import MADE, is_made_of, records_digest
from longca.lab.store.beside.repeats import RepeatStore
from longca.lab.store.index import CellFacts, cell_facts
from longca.lab.studies import Cell, Study
from longca.lab.studies.playoff.case import may_play

# of files in the folder of stamps
STAMP = ".done"
REST = "rest"
CHECKED = ".checked"
BEHIND = ".behind"
TABLE = "records.parquet"
OLDEST_NS = 10**9  # 1970, but not 0: some file systems take that for no time


def write_stamp(path: Path, folder: Path, cells: Sequence[Cell], study: Study | None = None) -> None:
    """Write the stamp of these cells, whose records are in a study's folder of results. Raises UserError.

    Args:
        study: the stamp of its play-offs as well, as far as these cells have any.
    """
    facts, _ = cell_facts(CellStore(folder))
    replace_file(path, stamp(facts, (cell.cell_id for cell in cells)) + _beside(study, cells, folder))


def write_playoff_stamp(path: Path, folder: Path) -> None:
    """Write the stamp of all play-offs in a study's folder of results. Raises UserError."""
    replace_file(path, PlayoffStore(folder).digest())


def stamp(facts: Mapping[str, CellFacts], cell_ids: Iterable[str]) -> bytes:
    """The stamp of these cells' records."""
    lines = "".join(
        f"{cell_id} {facts[cell_id].digest}\n" for cell_id in sorted(set(cell_ids)) if cell_id in facts
    )
    return f"{hashlib.sha256(lines.encode()).hexdigest()}\n".encode()


def local_device(device: str) -> str | None:
    """The model of this machine's device; None where only a measuring process can tell.

    Args:
        device: "auto", "cpu" or "cuda".
    """
    return cpu_name() if device == "cpu" or (device == "auto" and not NVIDIA_DRIVER.exists()) else None


def refresh(
    stamps: Path,
    study: Study,
    shards: Collection[Shard],
    code: str,
    device: str | None = None,
    container: str | None = None,
    playoff: Path | None = None,
) -> None:
    """Make the stamps of a study say what is so now: see the head of this module.

    Args:
        stamps: the folder of the stamps, in the study's folder of results.
        code: digest of all code that measures.
        device: model that would measure; if not known here, any that has measured in this study.
        container: digest of the image that would measure. Its packages are not known out here: the digest
            stands for them.
        playoff: the stamp of the job that does nothing but play-offs, if there is one.

    Raises:
        UserError: a stamp cannot be written.
    """
    store = CellStore(stamps.parent)
    facts, _ = cell_facts(store)
    parts = {stamps / f"{shard.name}{STAMP}": shard.cells for shard in shards}
    ids = {stamps / f"{shard.name}{STAMP}": [cell.cell_id for cell in shard.cells] for shard in shards}
    done = [path for path in ids if path.is_file()]
    if done:
        asked = [cell for shard in shards for cell in shard.cells]
        beside = PlayoffStore(store.folder).digest() + RepeatStore(store.folder).digest()
        state = _state(study, facts, asked, code, device, container) + beside
        is_checked = _read(stamps / CHECKED) == state
        versions = MethodVersions(study)
        due = set[str]() if is_checked else due_cells(asked, study, facts, device, container, versions)
        players = (
            set[str]()
            if is_checked
            else due_players(asked, study, facts, store.folder, device, container, versions)
        )
        for path in done:
            of_job = players.intersection(ids[path]) if has_playoffs(study, parts[path]) else set[str]()
            if due.isdisjoint(ids[path]) and not of_job:
                replace_file(path, stamp(facts, ids[path]) + _beside(study, parts[path], store.folder))
            else:
                path.unlink(missing_ok=True)
        if playoff is not None and playoff.is_file():
            if players:
                playoff.unlink(missing_ok=True)
            else:
                write_playoff_stamp(playoff, store.folder)
        if not due and not players:
            with suppress(UserError):  # whoever cannot write there compares each time
                replace_file(stamps / CHECKED, state)
    if (stamps.parent / TABLE).exists():
        wanted = [*ids, *([] if playoff is None else [playoff])]
        _tell_rest(
            stamps / REST,
            stamp(facts, facts.keys() - set(chain(*ids.values()))),
            all(path.is_file() for path in wanted),
        )
    _tell_behind(stamps, facts)


def due_cells(
    cells: Sequence[Cell],
    study: Study,
    facts: Mapping[str, CellFacts],
    device: str | None = None,
    container: str | None = None,
    versions_of: MethodVersions | None = None,
) -> set[str]:
    """Ids of the cells without a record of today's method. A disturbed record counts: on a machine that is
    never quiet a study must end.

    Args:
        device: as of `refresh`.
        container: as of `refresh`.
    """
    due = {cell.cell_id for cell in cells if cell.cell_id not in facts}
    if container is not None:
        return due | {
            cell.cell_id
            for cell in cells
            if cell.cell_id not in due
            and facts[cell.cell_id].device
            and facts[cell.cell_id].container != container
        }
    try:
        versions_on = (versions_of or MethodVersions(study)).of(cells)
    except UserError:  # a plug-in is broken: the run names it
        return {cell.cell_id for cell in cells}
    devices = {device} if device is not None else {each.device for each in facts.values() if each.device}
    versions = [versions_on(name) for name in sorted(devices)]
    return due | {
        cell.cell_id
        for cell in cells
        if cell.cell_id not in due
        and all(facts[cell.cell_id].method_version != version[cell.cell_id] for version in versions)
    }


def due_players(
    cells: Sequence[Cell],
    study: Study,
    facts: Mapping[str, CellFacts],
    folder: Path,
    device: str | None = None,
    container: str | None = None,
    versions_of: MethodVersions | None = None,
) -> set[str]:
    """Ids of the players of play-offs that `longca run` would play.

    Args:
        folder: of the study's results.
        device: as of `refresh`.
        container: as of `refresh`.
    """
    measured = [cell for cell in cells if cell.cell_id in facts]
    if study.playoff is None or not measured:
        return set()
    due = set[str]()
    known = versions_of or MethodVersions(study)
    for name in sorted(
        {device} if device is not None else {each.device for each in facts.values() if each.device}
    ):
        try:
            versions = known.of(measured)(name) if container is None else None
            playoffs, _ = playoffs_of(measured, facts, study.playoff, name, versions)
            players = {cell for playoff in playoffs for cell in playoff.players}
            of_playing = known.of(players, study.playoff)(name) if container is None else None
        except UserError:  # a plug-in is broken: the run names it
            return {cell.cell_id for cell in measured}
        due |= {
            cell.cell_id
            for playoff in due_playoffs(playoffs, PlayoffStore(folder), of_playing)
            for cell in playoff.players
        }
    return due


def has_playoffs(study: Study | None, cells: Sequence[Cell]) -> bool:
    """True if these cells, of a job or of a whole study, may have play-offs: they are of several kernels."""
    return (
        study is not None
        and study.playoff is not None
        and len({cell.kernel for cell in cells if may_play(cell)}) > 1
    )


def _beside(study: Study | None, cells: Sequence[Cell], folder: Path) -> bytes:
    """The part of a stamp that follows play-offs and repeats of these cells."""
    playoffs = PlayoffStore(folder).digest() if has_playoffs(study, cells) else b""
    return playoffs + RepeatStore(folder).digest({cell.cell_id for cell in cells})


def _tell_rest(path: Path, others: bytes, is_whole: bool) -> None:
    """Keep the stamp of the other records in a file, which also changes each time while a stamp is
    missing."""
    before = (_read(path) or b"").splitlines(keepends=True)
    missing = before[1:] if is_whole else [f"a stamp was missing at {time.time_ns()}\n".encode()]
    if before or missing or others != stamp({}, ()):
        replace_file(path, b"".join([others, *missing]))


def _tell_behind(stamps: Path, facts: Mapping[str, CellFacts]) -> None:
    """Have tables and pages made again that are not of the records of now, or not as they were made.

    What is there is kept until then: only its time is set back, and its additional input changes.
    """
    folder = stamps.parent
    there = {
        name: [path for path in (folder / each for each in names) if path.exists()]
        for name, names in MADE.items()
    }
    there["tables"] = there["tables"] or there["page"]  # a page without its tables
    if not any(there.values()):
        return
    records = records_digest(folder, {cell_id: known.digest for cell_id, known in facts.items()})
    for name, paths in there.items():
        is_told = (stamps / f"{name}{BEHIND}").exists() and all(
            path.stat().st_mtime_ns == OLDEST_NS for path in paths
        )
        if not paths or is_told or is_made_of(folder, name, records):
            continue
        replace_file(stamps / f"{name}{BEHIND}", f"it was behind at {time.time_ns()}\n".encode())
        for path in paths:
            with suppress(OSError):  # of another owner
                os.utime(path, ns=(OLDEST_NS, OLDEST_NS))


def _state(
    study: Study,
    facts: Mapping[str, CellFacts],
    cells: Sequence[Cell],
    code: str,
    device: str | None,
    container: str | None,
) -> bytes:
    """A digest of all that decides which cells are due. To compare it is quicker than to find them."""
    records = [(cell.cell_id, facts[cell.cell_id].digest if cell.cell_id in facts else "") for cell in cells]
    content = [
        study.model_dump_json(),
        records,
        code,
        device,
        container,
        os.environ.get(CONTAINER),
        package_stamps(),
        sorted({each.device for each in facts.values()}),
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest().encode()


def package_stamps() -> list[tuple[str, int, int]]:
    """The facts about installed packages that change with their versions, without reading any."""
    packages = []
    for folder in map(Path, dict.fromkeys(sys.path)):
        for pattern in ("*.dist-info/METADATA", "*.egg-info/PKG-INFO", "*.egg-info"):
            for path in folder.glob(pattern):
                with suppress(OSError):
                    facts = path.stat()
                    packages.append((str(path), facts.st_size, facts.st_ctime_ns))
    return sorted(packages)


def _read(path: Path) -> bytes | None:
    with suppress(OSError):
        return path.read_bytes()
    return None
