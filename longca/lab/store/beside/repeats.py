"""The store of repeats: one file for each cell and device with a second measurement."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from longca.core import Hardware
from longca.lab.store.beside.files import RecordFiles
from longca.lab.store.view import View
from longca.lab.studies import Record


class RepeatStore(RecordFiles):
    """The repeats of one study's results: `<folder>/repeats/<cell>-<device>.jsonl`, one record in each."""

    name = "repeats"

    def damage(self, records: Sequence[Record]) -> str:
        return "" if len(records) == 1 and records[0].repeat else "it holds no repeat"

    def of_cell(self, cell_id: str) -> list[Record]:
        """The valid repeats of a cell, in no particular order."""
        files = [self._load(path) for path in self.folder.glob(f"{cell_id}-*.jsonl")]
        return [record for records in files if isinstance(records, list) for record in records]

    @staticmethod
    def key(cell_id: str, unit: str) -> str:
        """The file name of a repeat.

        Args:
            unit: the individual device; see `unit_of`.
        """
        return f"{cell_id}-{hashlib.sha256(unit.encode()).hexdigest()[:8]}"


def unit_of(record: Record) -> str:
    """The individual device of a record: see `View.unit`; "" if unknown."""
    return View(record, Hardware()).unit
