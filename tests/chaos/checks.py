"""Checks after a trial: its cells are those of an undisturbed run, none was measured beside another, and
nothing is left behind."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longca.lab.store.lock import holders
from tests.chaos.processes import wait_until_gone

SAME = ("cell", "study", "method_version", "mask", "work")  # fields of a record that no accident may change
# by which two measurements may seem to overlap: a file's time is that of its last write
BESIDE_SECONDS = 0.05
GONE_SECONDS = 20.0  # that processes get to end, once the last run is over


@dataclass(frozen=True)
class CellFile:
    """A cell's file, as it lies in the folder."""

    record: dict[str, Any]
    written_ns: int
    """the file's time, which no change of the clock of a process moves"""

    @property
    def status(self) -> str:
        return str(self.record["outcome"]["status"])


def cell_files(folder: Path) -> dict[str, CellFile]:
    """Name → file of each cell that a reader would find; a file that is no JSON has an empty record."""
    files = {}
    for path in folder.glob("cells/*/*.json"):
        if path.name.startswith("."):
            continue
        try:
            content, written_ns = path.read_text(), path.stat().st_mtime_ns
        except OSError:
            continue  # it was removed meanwhile
        try:
            files[path.stem] = CellFile(json.loads(content), written_ns)
        except ValueError:
            files[path.stem] = CellFile({"outcome": {"status": "damaged"}}, written_ns)
    return files


def unlike(cells: dict[str, CellFile], undisturbed: dict[str, CellFile]) -> list[str]:
    """The differences from an undisturbed run: cells, statuses, digests of masks, versions of methods,
    references."""
    texts = [f"cell {cell_id} is not there" for cell_id in sorted(undisturbed.keys() - cells.keys())]
    texts += [f"cell {cell_id} should not be there" for cell_id in sorted(cells.keys() - undisturbed.keys())]
    for cell_id in sorted(cells.keys() & undisturbed.keys()):
        here = cells[cell_id]
        there = undisturbed[cell_id]
        if here.status != there.status:
            texts.append(f"cell {cell_id} is {here.status}, not {there.status}")
            continue
        texts += [
            f"cell {cell_id} has another {name}"
            for name in SAME
            if here.record.get(name) != there.record.get(name)
        ]
        if _compared(here.record) != _compared(there.record):
            texts.append(f"cell {cell_id} was compared with something else")
    return texts


def _compared(record: dict[str, Any]) -> list[Any]:
    """The reference that a result was compared with."""
    return [(record.get("accuracy") or {}).get(key) for key in ("reference", "scope")]


def lost(kept: dict[str, int], cells: dict[str, CellFile]) -> list[str]:
    """Finished cells that were lost or measured again.

    Args:
        kept: name → time of the file of each cell that was once finished.
    """
    return [
        f"finished cell {cell_id} was {'written again' if cell_id in cells else 'lost'}"
        for cell_id, written_ns in sorted(kept.items())
        if cell_id not in cells or cells[cell_id].written_ns != written_ns
    ]


def side_by_side(cells: Iterable[CellFile]) -> list[str]:
    """Pairs of cells that were measured at the same time, from when their files were written and how long
    each took."""
    spans = [
        (cell.written_ns / 1e9 - float(cell.record["seconds"]), cell.written_ns / 1e9, cell.record)
        for cell in cells
        if "seconds" in cell.record
    ]
    texts = []
    last_end = 0.0
    last = {}
    for begin, end, record in sorted(spans, key=lambda span: span[:2]):
        if begin < last_end - BESIDE_SECONDS:
            texts.append(
                f"cells {last['cell_id']} of run {last['run_id']} and {record['cell_id']} of run "
                f"{record['run_id']} were measured "
                f"at the same time for {min(end, last_end) - begin:.2f} s"
            )
        if end > last_end:
            last_end = end
            last = record
    return texts


def left_behind(folder: Path, results: Path, mark: str) -> list[str]:
    """Processes, locks and temporary files that are left once the last run has ended.

    Args:
        folder: of the whole trial.
        results: of the study.
        mark: of the trial's processes.
    """
    left = wait_until_gone(mark, GONE_SECONDS)
    texts = [f"process {process.pid} is left: {process.command[:120]}" for process in left]
    texts += [f"a lock is held by {holder}" for holder in (holders(results) if results.is_dir() else [])]
    texts += [
        f"temporary file {path.relative_to(folder)} is left" for path in sorted(results.rglob(".*.tmp"))
    ]
    return texts
