"""The store of play-offs: one file a case, so that a play-off is there with all its players or not at all."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from longca.core.errors import UserError
from longca.core.reading import CELL_FILE, read_file
from longca.core.record import Record
from longca.store.cells import UnusableFile
from longca.store.decode import Decoder, Unusable, encode
from longca.store.files import TEMPORARY, remove_leftovers, write_atomically


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
