"""The store: one JSON file a cell, so that a killed run loses the cell in flight and nothing else; and one file a play-off."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from longca.core.errors import UserError, shown
from longca.core.reading import CELL_FILE, read_file
from longca.core.record import Record
from longca.store.decode import Decoder, Unusable, encode
from longca.store.files import TEMPORARY, remove_leftovers, write_atomically
from longca.store.lock import lock_folder


@dataclass(frozen=True)
class UnusableFile:
    """A cell file that cannot be used, and why."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return shown(f"{self.path}: {self.reason}")


class CellStore:
    """The cells of one study's results: `<folder>/cells/<aa>/<cell_id>.json`, aa being the id's first two digits."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.cells = self.folder / "cells"
        self._decoder = Decoder()

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
            write_atomically(path, encode(record))
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
            record = self._decoder.decode(read_file(path, CELL_FILE))
        except OSError as error:
            return UnusableFile(path, f"cannot be read ({error.strerror})")
        except Unusable as error:
            return UnusableFile(path, str(error))
        if path.stem != record.cell_id or path.parent.name != path.stem[:2]:
            return UnusableFile(path, f"is damaged (it holds cell {record.cell_id}, whose place is another)")
        return record


class PlayoffStore:
    """The play-offs of one study's results: `<folder>/playoffs/<case>.jsonl`, a line for each player, the fastest of before first.

    A case is played off again in place of its last play-off.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder) / "playoffs"
        self._decoder = Decoder()

    def path(self, case: str) -> Path:
        return self.folder / f"{case}.jsonl"

    def write(self, case: str, records: Sequence[Record]) -> Path:
        """Put these records in place of the case's last play-off, completely or not at all.

        Raises:
            UserError: the disk is full, the folder is read-only, or the like; what was there stays.
        """
        path = self.path(case)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, b"".join(map(encode, records)))
        except OSError as error:
            raise UserError(f"Cannot write '{path}'", why=error.strerror or str(error),
                            todo="What is finished is safe: make room or give another folder, and run again") from error
        return path

    def read(self, case: str) -> list[Record] | UnusableFile:
        """The records of a case's play-off, none where it was not played off; an UnusableFile where its file cannot be used."""
        path = self.path(case)
        return self._load(path) if path.exists() else []

    def read_all(self) -> tuple[list[Record], list[UnusableFile]]:
        """The records of all play-offs in the order of their cases, and all files that cannot be used."""
        loaded = [self._load(path) for path in self._paths()]
        return ([record for records in loaded if isinstance(records, list) for record in records],
                [problem for problem in loaded if isinstance(problem, UnusableFile)])

    def digest(self) -> bytes:
        """A line that changes with any play-off's file."""
        content = hashlib.sha256()
        for path in self._paths():
            content.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
        return f"{content.hexdigest()}\n".encode()

    def remove_leftovers(self) -> None:
        """Remove temporary files whose writers have died."""
        remove_leftovers(self.folder.glob(f".*{TEMPORARY}"))

    def _paths(self) -> list[Path]:
        return [path for path in sorted(self.folder.glob("*.jsonl")) if not path.name.startswith(".")]

    def _load(self, path: Path) -> list[Record] | UnusableFile:
        try:
            records = [self._decoder.decode(line) for line in read_file(path, CELL_FILE).splitlines()]
        except OSError as error:
            return UnusableFile(path, f"cannot be read ({error.strerror})")
        except Unusable as error:
            return UnusableFile(path, str(error))
        if not records or len({record.playoff for record in records}) != 1 or records[0].playoff is None:
            return UnusableFile(path, "is damaged (its records are not those of one play-off)")
        return records
