"""Records that stand beside those of the cells, in files of their own: of play-offs, and repeats."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from pathlib import Path

from longca.core.reading import CELL_FILE, read_file
from longca.core.record import Record
from longca.store.cells import UnusableFile
from longca.store.decode import Decoder, Unusable, encode
from longca.store.files import TEMPORARY, keep, remove_leftovers


class RecordFiles:
    """A folder beside the cells of a study's results: `<folder>/<name>/<key>.jsonl`, a line for each record. A sub-class names it."""

    name: str
    """of the folder"""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder) / self.name
        self._decoder = Decoder()

    def damage(self, records: Sequence[Record]) -> str:
        """The reason why these cannot be the records of one file; empty if they can."""
        raise NotImplementedError

    def path(self, key: str) -> Path:
        return self.folder / f"{key}.jsonl"

    def write(self, key: str, records: Sequence[Record]) -> Path:
        """Put these records in place of the last ones of that key, completely or not at all.

        Raises:
            UserError: the disk is full, the folder is read-only, or the like; what was there stays.
        """
        return keep(self.path(key), b"".join(map(encode, records)), safe="What is finished is")

    def read(self, key: str) -> list[Record] | UnusableFile:
        """The records of a key, none where it has no file; an UnusableFile where that cannot be used."""
        path = self.path(key)
        return self._load(path) if path.exists() else []

    def read_all(self) -> tuple[list[Record], list[UnusableFile]]:
        """The records of all files in the order of their names, and all files that cannot be used."""
        loaded = [self._load(path) for path in self._paths()]
        return ([record for records in loaded if isinstance(records, list) for record in records],
                [problem for problem in loaded if isinstance(problem, UnusableFile)])

    def digest(self, beginnings: Collection[str] | None = None) -> bytes:
        """A line that changes with any of the files.

        Args:
            beginnings: only of files whose keys begin so, up to a dash.
        """
        content = hashlib.sha256()
        for path in self._paths():
            if beginnings is not None and path.name.partition("-")[0] not in beginnings:
                continue
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
        damage = self.damage(records) if records else "it is empty"
        return UnusableFile(path, f"is damaged ({damage})") if damage else records

