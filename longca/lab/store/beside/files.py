"""Additional records in separate files: play-offs and repeats."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from pathlib import Path

from longca.core.reading import CELL_FILE, read_file
from longca.lab.store.cells import UnusableFile
from longca.lab.store.decode import Decoder, Unusable, encode
from longca.lab.store.files import TEMPORARY, keep, remove_leftovers
from longca.lab.studies import Record


class RecordFiles:
    """A folder of additional records in a study's results: `<folder>/<name>/<key>.jsonl`, one line for each
    record. A sub-class sets its name."""

    name: str
    """of the folder"""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder) / self.name
        self._decoder = Decoder()

    def damage(self, records: Sequence[Record]) -> str:
        """The reason why these records do not belong in one file; empty if they do."""
        raise NotImplementedError

    def path(self, key: str) -> Path:
        return self.folder / f"{key}.jsonl"

    def write(self, key: str, records: Sequence[Record]) -> Path:
        """Replace the records of that key atomically.

        Raises:
            UserError: the disk is full, the folder is read-only, or the like; the old records are kept.
        """
        return keep(self.path(key), b"".join(map(encode, records)), safe="What is finished is")

    def read(self, key: str) -> list[Record] | UnusableFile:
        """The records of a key, none without a file; an UnusableFile for an invalid file."""
        path = self.path(key)
        return self._load(path) if path.exists() else []

    def read_all(self) -> tuple[list[Record], list[UnusableFile]]:
        """The records of all files in the order of their names, and all invalid files."""
        loaded = [self._load(path) for path in self._paths()]
        return (
            [record for records in loaded if isinstance(records, list) for record in records],
            [problem for problem in loaded if isinstance(problem, UnusableFile)],
        )

    def digest(self, beginnings: Collection[str] | None = None) -> bytes:
        """A line that changes with any of the files.

        Args:
            beginnings: only files whose keys begin with one of these and a dash.
        """
        content = hashlib.sha256()
        for path in self._paths():
            if beginnings is not None and path.name.partition("-")[0] not in beginnings:
                continue
            content.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
        return f"{content.hexdigest()}\n".encode()

    def remove_leftovers(self) -> None:
        """Remove temporary files of ended writers."""
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
        damage = self.damage(records) if records else "it is empty"
        return UnusableFile(path, f"is damaged ({damage})") if damage else records
