"""An index of facts about the cells of a whole study, read from its records and cached while these are
unchanged.

A study of 100,000 cells takes long to read and check, but `longca status` and the start of a run need only a
few facts. These are cached in one file next to the cells, with the size, time and inode of each cell's file.
A cell's file is read again when one of these changes. A lost or damaged index is rebuilt.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from longca.lab.code import files_digest, reached
from longca.lab.store.cells import CellStore, UnusableFile
from longca.lab.store.checks.record import digest_of
from longca.lab.store.files import write_atomically
from longca.lab.studies import WAS_AT, Cell, Failed, Record

NAME = ".index.json"
FEWEST = 1000  # cells for which an index is worth its file
LOG_LINES = 2  # first lines of an error's log, which name the origin of the error


Stamp = tuple[int, int, int]
"""size, time and inode of a file, which change with each write, even if the modification time is restored"""


class CellFacts(NamedTuple):
    """Facts about one cell's record."""

    status: str
    method_version: str
    time_ms: float | None = None
    """median of the slowest rank"""
    tflops: float | None = None
    """of all ranks together"""
    gb_per_s: float | None = None
    """of a copy"""
    error_of_budget: float | None = None
    """the largest ratio of an error to its budget"""
    reason: str = ""
    """why there is no number, in one line"""
    log_start: str = ""
    """first lines of an error's log, and the code positions of ranks that died or were stopped"""
    is_control: bool = False
    num_disturbed: int = 0
    """number of consecutive disturbed records"""
    is_noisy: bool = False
    is_drifting: bool = False
    """True if its samples drift in the order of measurement"""
    num_unsettled: int = 0
    """number of consecutive drifting or disturbed records"""
    digest: str = ""
    """16 hexadecimal digits of the SHA-256 of the record's JSON"""
    device: str = ""
    """device model; empty if no process reported it"""
    container: str | None = None
    """digest of its image"""
    shortest_ms: float | None = None
    """lower end of the interval of the median"""
    longest_ms: float | None = None
    """upper end of the interval"""
    unit: str = ""
    """the device itself: see `View.unit`"""
    run_id: str = ""
    noise: float | None = None
    """interquartile range over median"""
    duty: float | None = None
    """most of the time that calls kept the GPU busy; None where it did not rest after each"""

    def columns(self, cell: Cell) -> dict[str, Any]:
        """The remembered values under the names of the derived table's columns; `unit` is the column of the
        device itself."""
        return {
            **self._asdict(),
            "cell_id": cell.cell_id,
            "seed": cell.seed,
            "disturbed": self.num_disturbed > 0,
        }

    @classmethod
    def of(cls, record: Record) -> CellFacts:
        from longca.core import Hardware
        from longca.lab.store.view import View

        view = View(record, Hardware())
        log = record.outcome.log.splitlines()[:LOG_LINES] if isinstance(record.outcome, Failed) else []
        log += [note for note in record.notes if WAS_AT in note][:LOG_LINES]
        shortest, longest = view.bounds_of_median_ms or (None, None)
        return cls(
            record.outcome.status,
            record.method_version,
            view.median_ms,
            view.tflops(view.median_ms),
            view.gb_per_s,
            view.budget_ratio(view.worst_tensor),
            view.reason,
            "\n".join(log),
            view.is_control,
            view.num_disturbed,
            view.is_noisy,
            view.is_drifting,
            view.num_unsettled,
            digest_of(record),
            view.device,
            view.software and view.software.container,
            shortest,
            longest,
            view.unit,
            record.run_id,
            view.noise,
            record.samples and record.samples.duty,
        )


Floats = list[float | None]
Columns = tuple[
    list[str],
    list[str],
    Floats,
    Floats,
    Floats,
    Floats,
    list[str],
    list[str],
    list[bool],
    list[int],
    list[bool],
    list[bool],
    list[int],
    list[str],
    list[str],
    list[str | None],
    Floats,
    Floats,
    list[str],
    list[str],
    Floats,
    Floats,
]


class _Index(NamedTuple):
    """The index as columns, which are much faster to read than rows."""

    code: str
    """digest of the writing code"""
    names: list[str]
    """ids of cells, in order"""
    sizes: list[int]
    times_ns: list[int]
    inodes: list[int]
    facts: Columns
    """columns of `CellFacts`"""

    def stamps(self) -> list[Stamp]:
        return list(zip(self.sizes, self.times_ns, self.inodes, strict=True))

    def rows(self) -> list[CellFacts]:
        return list(map(CellFacts._make, zip(*self.facts, strict=True)))


def cell_facts(store: CellStore) -> tuple[dict[str, CellFacts], list[UnusableFile]]:
    """cell_id → facts of each cell in the order of ids, and all invalid files. Reads only changed files."""
    code = files_digest(reached([Path(__file__)]))
    names, stamps, problems = _scan(store.cells)
    index = _read(store.cells / NAME, code)
    if index is not None and index.names == names and index.stamps() == stamps:
        return dict(zip(names, index.rows(), strict=True)), problems
    known = (
        {}
        if index is None
        else dict(zip(index.names, zip(index.stamps(), index.rows(), strict=True), strict=True))
    )
    entries: dict[str, tuple[Stamp, CellFacts]] = {}
    for name, stamp in zip(names, stamps, strict=True):
        before = known.get(name)
        if before is not None and before[0] == stamp:
            entries[name] = before
            continue
        record = store.read(name)
        if isinstance(record, Record):
            entries[name] = stamp, CellFacts.of(record)
        elif record is not None:
            problems.append(record)
    if len(entries) >= FEWEST and entries != known:
        sizes, times_ns, inodes = (
            list(column) for column in zip(*(stamp for stamp, _ in entries.values()), strict=True)
        )
        facts = tuple(list(column) for column in zip(*(facts for _, facts in entries.values()), strict=True))
        made = _Index(code, list(entries), sizes, times_ns, inodes, cast("Columns", facts))
        with suppress(OSError):  # without write access, all cells are read each time
            write_atomically(store.cells / NAME, to_json(made, inf_nan_mode="constants"))
    return {name: facts for name, (_, facts) in entries.items()}, problems


def files_of_cells(store: CellStore) -> tuple[dict[str, Stamp], list[UnusableFile]]:
    """cell_id → stamp of each cell's file, in the order of ids, without reading it; and misplaced files."""
    names, stamps, problems = _scan(store.cells)
    return dict(zip(names, stamps, strict=True)), problems


def stamps_as_bytes(files: Mapping[str, Stamp]) -> tuple[str, bytes]:
    """(ids, stamps) of `files_of_cells`, which change with each of them."""
    return " ".join(files), array("Q", chain.from_iterable(files.values())).tobytes()


def _scan(cells: Path) -> tuple[list[str], list[Stamp], list[UnusableFile]]:
    """Names and stamps of all cells' files, in order, and misplaced files."""
    stamps: list[tuple[str, Stamp]] = []
    strays: list[UnusableFile] = []
    for folder in _entries(cells):
        for entry in _entries(folder.path) if folder.is_dir() else ():
            name = entry.name
            if not name.endswith(".json") or name[0] == ".":
                continue
            if name[:2] != folder.name:
                strays.append(UnusableFile(Path(entry.path), "is damaged (its place is another)"))
                continue
            try:
                status = entry.stat()
            except FileNotFoundError:  # removed just now
                continue
            stamps.append((name[:-5], (status.st_size, status.st_ctime_ns, status.st_ino)))
    stamps.sort()
    return [name for name, _ in stamps], [stamp for _, stamp in stamps], strays


def _entries(folder: Path | str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except FileNotFoundError:
        return []


def _read(path: Path, code: str) -> _Index | None:
    """The index; None if it is missing, damaged, or written by other code."""
    try:
        index = _FILE.validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
    columns = (index.sizes, index.times_ns, index.inodes, *index.facts)
    return (
        index if index.code == code and all(len(column) == len(index.names) for column in columns) else None
    )


_FILE = TypeAdapter(_Index)
