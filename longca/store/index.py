"""The facts about cells that commands ask of a whole study at once: read from its records, and remembered for as long as these stay.

A study of 100,000 cells takes long to read and check. `longca status` and the start of a run ask for a few facts only. These are kept in
one file beside the cells, each with the size, time and inode of the cell's file that it was read from. Where one of these has changed,
the cell's file is read again. The index itself may be lost or damaged at any time: it is then made anew.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from longca.core.cell import Cell
from longca.core.code.source import files_digest, reached
from longca.core.record import WAS_AT, Failed, Record
from longca.store.cells import CellStore, UnusableFile
from longca.store.checks.record import digest_of
from longca.store.files import write_atomically

NAME = ".index.json"
FEWEST = 1000  # cells for which an index is worth its file
LOG_LINES = 2  # the first ones of an error's log: they say where it was raised


Stamp = tuple[int, int, int]
"""size, time and inode of a file: another one after each write, also of one that restores the time of the content"""


class CellFacts(NamedTuple):
    """Facts about one cell's record."""

    status: str
    method_version: str
    time_ms: float | None = None
    """median; of several ranks the slowest counts"""
    tflops: float | None = None
    """of all ranks together"""
    gb_per_s: float | None = None
    """of a copy"""
    error_of_budget: float | None = None
    """the largest error over the error allowed there"""
    reason: str = ""
    """why there is no number, in one line"""
    log_start: str = ""
    """first lines of an error's log, and the notes of where ranks were that died or were stopped"""
    is_control: bool = False
    num_disturbed: int = 0
    """records in a row during which others used the device"""
    is_noisy: bool = False
    is_drifting: bool = False
    """its samples drift in the order measured"""
    num_unsettled: int = 0
    """records in a row that drifted or were disturbed"""
    digest: str = ""
    """16 hexadecimal digits of the SHA-256 of the record's JSON"""
    device: str = ""
    """model that measured it; empty where no process got as far as telling"""
    container: str | None = None
    """digest of the image that it was measured in"""
    shortest_ms: float | None = None
    """the interval of the median, from here"""
    longest_ms: float | None = None
    """to here"""
    unit: str = ""
    """the device itself: see `View.unit`"""
    run_id: str = ""
    noise: float | None = None
    """interquartile range over median"""
    duty: float | None = None
    """most of the time that calls kept the GPU busy; None where it did not rest after each"""

    def columns(self, cell: Cell) -> dict[str, Any]:
        """What is remembered under the names of the derived table's columns; `unit` stands for those of the device itself."""
        return {**self._asdict(), "cell_id": cell.cell_id, "seed": cell.seed, "disturbed": self.num_disturbed > 0}

    @classmethod
    def of(cls, record: Record) -> CellFacts:
        from longca.store.hardware import Hardware
        from longca.store.view import View

        view = View(record, Hardware())
        log = record.outcome.log.splitlines()[:LOG_LINES] if isinstance(record.outcome, Failed) else []
        log += [note for note in record.notes if WAS_AT in note][:LOG_LINES]
        shortest, longest = view.bounds_of_median_ms or (None, None)
        return cls(record.outcome.status, record.method_version, view.median_ms, view.tflops(view.median_ms), view.gb_per_s,
                   view.budget_ratio(view.worst_tensor), view.reason, "\n".join(log), view.is_control,
                   view.num_disturbed, view.is_noisy, view.is_drifting, view.num_unsettled,
                   digest_of(record), view.device, view.software and view.software.container,
                   shortest, longest, view.unit, record.run_id, view.noise, record.samples and record.samples.duty)


Floats = list[float | None]
Columns = tuple[list[str], list[str], Floats, Floats, Floats, Floats, list[str], list[str], list[bool], list[int], list[bool],
                list[bool], list[int], list[str], list[str], list[str | None], Floats, Floats, list[str], list[str], Floats,
                Floats]


class _Index(NamedTuple):
    """The index as columns: much quicker to read than rows."""

    code: str
    """digest of the code that wrote it"""
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
    """cell_id → facts of each cell in the order of their ids, and all files that cannot be used. Reads only what has changed since."""
    code = files_digest(reached([Path(__file__)]))
    names, stamps, problems = _scan(store.cells)
    index = _read(store.cells / NAME, code)
    if index is not None and index.names == names and index.stamps() == stamps:
        return dict(zip(names, index.rows(), strict=True)), problems
    known = {} if index is None else dict(zip(index.names, zip(index.stamps(), index.rows(), strict=True), strict=True))
    found: dict[str, tuple[Stamp, CellFacts]] = {}
    for name, stamp in zip(names, stamps, strict=True):
        before = known.get(name)
        if before is not None and before[0] == stamp:
            found[name] = before
            continue
        record = store.read(name)
        if isinstance(record, Record):
            found[name] = stamp, CellFacts.of(record)
        elif record is not None:
            problems.append(record)
    if len(found) >= FEWEST and found != known:
        sizes, times_ns, inodes = (list(column) for column in zip(*(stamp for stamp, _ in found.values()), strict=True))
        facts = tuple(list(column) for column in zip(*(facts for _, facts in found.values()), strict=True))
        made = _Index(code, list(found), sizes, times_ns, inodes, cast("Columns", facts))
        with suppress(OSError):  # whoever cannot write there reads all cells each time
            write_atomically(store.cells / NAME, to_json(made, inf_nan_mode="constants"))
    return {name: facts for name, (_, facts) in found.items()}, problems


def _scan(cells: Path) -> tuple[list[str], list[Stamp], list[UnusableFile]]:
    """Names and stamps of all cells' files, in order, and the files that lie in another folder than their names say."""
    found: list[tuple[str, Stamp]] = []
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
            found.append((name[:-5], (status.st_size, status.st_ctime_ns, status.st_ino)))
    found.sort()
    return [name for name, _ in found], [stamp for _, stamp in found], strays


def _entries(folder: Path | str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except FileNotFoundError:
        return []


def _read(path: Path, code: str) -> _Index | None:
    """The index; None if it is not there, is damaged, or was written by other code."""
    try:
        index = _FILE.validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
    columns = (index.sizes, index.times_ns, index.inodes, *index.facts)
    return index if index.code == code and all(len(column) == len(index.names) for column in columns) else None


_FILE = TypeAdapter(_Index)
