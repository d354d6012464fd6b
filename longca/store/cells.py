"""The store: one JSON file a cell, so that a killed run loses the cell in flight and nothing else."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from longca.core.errors import UserError
from longca.core.record import SCHEMA_VERSION, Record
from longca.store.files import TEMPORARY, remove_leftovers, write_atomically
from longca.store.lock import lock_folder


@dataclass(frozen=True)
class UnusableFile:
    """A cell file that cannot be used, and why."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class CellStore:
    """The cells of one study's results: `<folder>/cells/<aa>/<cell_id>.json`, aa being the id's first two digits."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.cells = self.folder / "cells"

    def path(self, cell_id: str) -> Path:
        return self.cells / cell_id[:2] / f"{cell_id}.json"

    def write(self, record: Record) -> Path:
        """Put the record in place of the cell's last one, completely or not at all.

        Raises:
            UserError: the disk is full, the folder is read-only, or the like; what was there stays.
        """
        path = self.path(record.cell_id)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, record.model_dump_json().encode() + b"\n")
        except OSError as error:
            raise UserError(f"Cannot write '{path}'", why=error.strerror or str(error),
                            todo="Finished cells are safe: make room or give another folder, and run again") from error
        return path

    def read(self, cell_id: str) -> Record | UnusableFile | None:
        """The cell's record; an UnusableFile where its file cannot be used; None where it was never measured."""
        path = self.path(cell_id)
        return self._load(path) if path.exists() else None

    def read_all(self) -> tuple[list[Record], list[UnusableFile]]:
        """All records in the order of their ids, and all files that cannot be used. Never raises for a file's content."""
        loaded = [self._load(path) for path in sorted(self.cells.glob("*/*.json"), key=lambda path: path.name)
                  if not path.name.startswith(".")]
        return ([entry for entry in loaded if isinstance(entry, Record)],
                [entry for entry in loaded if isinstance(entry, UnusableFile)])

    @contextmanager
    def lock(self, part: str | None = None, *, wait: bool = False,
             announce: Callable[[str], object] = print, given_up: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Hold the folder, or one part of it, against other runs (`longca.store.lock.lock_folder`)."""
        with lock_folder(self.folder, part, wait=wait, announce=announce, given_up=given_up):
            remove_leftovers(self.cells.glob(f"*/.*{TEMPORARY}"))
            yield

    def _load(self, path: Path) -> Record | UnusableFile:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            return UnusableFile(path, f"cannot be read ({error.strerror})")
        except (ValueError, RecursionError):
            return UnusableFile(path, "is damaged (not JSON: cut off or overwritten)")
        version = content.get("schema_version") if isinstance(content, dict) else None
        if version != SCHEMA_VERSION:
            return UnusableFile(path, f"has schema version {version}, this longca reads {SCHEMA_VERSION}" if version is not None
                           else "is damaged (not a record: it has no schema version)")
        try:
            record = Record.model_validate(content)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            return UnusableFile(path, f"is damaged ({place + ': ' if place else ''}{first['msg'].removeprefix('Value error, ')})")
        if path != self.path(record.cell_id):
            return UnusableFile(path, f"is damaged (it holds cell {record.cell_id}, whose place is another)")
        return record
