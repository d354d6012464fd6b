"""The store: one JSON file for each cell, so that a killed run loses only the cell in progress."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longca.core import shown
from longca.core.reading import CELL_FILE, read_file
from longca.lab.store.decode import Decoder, Unusable, encode, record_without_secrets
from longca.lab.store.environments.listings import write_listings
from longca.lab.store.files import TEMPORARY, keep, remove_leftovers
from longca.lab.store.lock import lock_folder
from longca.lab.studies import Record


@dataclass(frozen=True)
class UnusableFile:
    """An invalid cell file, with the reason."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return shown(f"{self.path}: {self.reason}")


class CellStore:
    """The cells of one study's results: `<folder>/cells/<aa>/<cell_id>.json`, aa being the id's first two
    digits.

    Controls are also stored for each device, `<folder>/controls/<device>/<cell_id>.json`: each device is
    compared with its own controls.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.cells = self.folder / "cells"
        self.controls = self.folder / "controls"
        self._decoder = Decoder()

    def path(self, cell_id: str) -> Path:
        return self.cells / cell_id[:2] / f"{cell_id}.json"

    def write(self, record: Record) -> Path:
        """Replace the record of the cell atomically.

        Raises:
            UserError: the disk is full, the folder is read-only, or the like; the old record is kept.
        """
        return self._write(self.path(record.cell_id), record)

    def write_control(self, record: Record, device: str) -> Path:
        """Store the record of a control with those of the same device, like `write`.

        Args:
            device: a unique id of the device, such as its UUID.
        """
        return self._write(self._controls_of(device) / f"{record.cell_id}.json", record)

    def read_controls(self, device: str) -> dict[str, Record]:
        """cell_id → the record of a control on this device; invalid files count as missing."""
        loaded = map(self.load, sorted(self._controls_of(device).glob("[!.]*.json")))
        return {record.cell_id: record for record in loaded if isinstance(record, Record)}

    def _controls_of(self, device: str) -> Path:
        return self.controls / hashlib.sha256(device.encode()).hexdigest()[:12]

    def _write(self, path: Path, record: Record) -> Path:
        return keep(path, encode(record_without_secrets(record)), safe="Finished cells are")

    def write_listings(self, listings: Mapping[str, Any]) -> None:
        """Write listings of environments, JSON by digest, next to the cells. Raises UserError."""
        write_listings(self.folder, listings)

    def read(self, cell_id: str) -> Record | UnusableFile | None:
        """The cell's record; an UnusableFile for an invalid file; None if it was never measured."""
        path = self.path(cell_id)
        return self.load(path) if path.exists() else None

    def read_all(self) -> tuple[list[Record], list[UnusableFile]]:
        """All records in the order of their ids, then the controls of other devices, and all invalid files.

        Never raises for a file's content.
        """
        loaded = [
            self.load(path) for path in sorted(self.cells.glob("*/[!.]*.json"), key=lambda path: path.name)
        ]
        records = [entry for entry in loaded if isinstance(entry, Record)]
        problems = [entry for entry in loaded if isinstance(entry, UnusableFile)]
        controls, of_controls = self.read_all_controls()
        known = {(record.cell_id, record.run_id, record.started_at) for record in records}
        records += [
            entry for entry in controls if (entry.cell_id, entry.run_id, entry.started_at) not in known
        ]
        return records, [*problems, *of_controls]

    def read_all_controls(self) -> tuple[list[Record], list[UnusableFile]]:
        """The records of controls on all devices, some of which the cells have too, and all invalid files."""
        loaded = [self.load(path) for path in sorted(self.controls.glob("*/[!.]*.json"))]
        return (
            [entry for entry in loaded if isinstance(entry, Record)],
            [entry for entry in loaded if isinstance(entry, UnusableFile)],
        )

    @contextmanager
    def lock(
        self,
        part: str | None = None,
        *,
        wait: bool = False,
        announce: Callable[[str], object] = print,
        given_up: Callable[[], bool] = lambda: False,
    ) -> Iterator[None]:
        """Lock the folder, or one part of it, against other runs (`longca.lab.store.lock.lock_folder`)."""
        with lock_folder(self.folder, part, wait=wait, announce=announce, given_up=given_up):
            for folder in (self.cells, self.controls):
                remove_leftovers(folder.glob(f"*/.*{TEMPORARY}"))
            yield

    def load(self, path: Path) -> Record | UnusableFile:
        """The record in a file of this store; an UnusableFile for an invalid one."""
        try:
            record = self._decoder.decode(read_file(path, CELL_FILE))
        except OSError as error:
            return UnusableFile(path, f"cannot be read ({error.strerror})")
        except Unusable as error:
            return UnusableFile(path, str(error))
        is_misplaced = path.is_relative_to(self.cells) and path.parent.name != path.stem[:2]
        if path.stem != record.cell_id or is_misplaced:
            return UnusableFile(path, f"is damaged (it holds cell {record.cell_id}, whose place is another)")
        return record
