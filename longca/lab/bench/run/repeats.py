"""The repeats of a run: cells that are measured a second time, on the same device and, if it can be, on
another. It never imports torch.

A repeat of another device is of a cell that another shard of the study measured, on another device of the
same model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from statistics import median
from typing import TYPE_CHECKING

from longca.core import Hardware
from longca.lab.bench.run.method_version import MethodVersions
from longca.lab.store import CellStore, View
from longca.lab.store.beside.repeats import RepeatStore, unit_of
from longca.lab.store.index import CellFacts
from longca.lab.store.text import percent, plural
from longca.lab.studies import Cell, Record, Study
from longca.lab.studies.playoff.repeats import RepeatRules, beginning, drawn, may_repeat

if TYPE_CHECKING:
    from longca.lab.bench.run.ending import Stop
    from longca.lab.bench.run.progress import Progress
    from longca.lab.bench.workers.pool import Pool


@dataclass
class RepeatCounts:
    """Numbers of repeats of a run."""

    num_measured: int = 0
    num_kept: int = 0
    """measured a second time before"""
    num_failed: int = 0
    """of those measured now: without a number the second time"""
    differences: list[float] = field(default_factory=list)
    """of both medians, as shares of the shorter one"""

    def __str__(self) -> str:
        if not self.num_measured + self.num_kept:
            return ""
        failed = (
            f"; {plural(self.num_failed, 'cell')} had no number the second time" if self.num_failed else ""
        )
        medians = (
            f": medians differ by {percent(median(self.differences))} in the middle, "
            f"{percent(max(self.differences))} at most"
            if self.differences
            else ""
        )
        return f"{plural(self.num_measured + self.num_kept, 'cell')} measured twice{medians}{failed}"


class RepeatRun:
    """The repeats that a run has to make after its cells.

    Args:
        cells: of the run.
        measure: makes the record of a cell, with further fields.
        versions: of the study's cells.
    """

    def __init__(
        self,
        study: Study,
        rules: RepeatRules,
        cells: Sequence[Cell],
        store: CellStore,
        pool: Pool,
        measure: Callable[..., Record],
        versions: MethodVersions,
    ) -> None:
        self._study = study
        self._rules = rules
        self._cells = cells
        self._pool = pool
        self._measure = measure
        self._versions = versions
        self._repeats = RepeatStore(store.folder)
        self.counts = RepeatCounts()

    def measure(
        self, facts: Mapping[str, CellFacts], show: Progress, stop: Stop, *, force: bool = False
    ) -> None:
        """Measure what is due. Each repeat is stored at once. Raises KeyboardInterrupt when the run is to
        end."""
        self._repeats.remove_leftovers()
        own = _times(self._cells, facts, self._pool.device.name)
        chosen = list(beginning(own, self._study.seed, self._rules))
        if not chosen:
            return
        elsewhere = self._elsewhere(
            {cell.cell_id for cell in self._cells}, facts, facts[chosen[0].cell_id].unit, len(chosen) // 2
        )
        chosen += [*elsewhere]
        versions = self._versions.of(chosen)(self._pool.device.name)
        due = []
        for cell in chosen:
            before = self._known(cell, versions[cell.cell_id], unit=elsewhere.get(cell))
            if before is None or force:
                due.append(cell)
            else:
                self.counts.num_kept += 1
                self._compare(before, facts[cell.cell_id])
        if due:
            self._pool.restart()
        for number, cell in enumerate(due):
            if stop.soon():
                show.note(f"Stopped with {plural(len(due) - number, 'repeat')} to do: run again to go on")
                raise KeyboardInterrupt
            show.begin(cell)
            record = self._measure(cell, method_version=versions[cell.cell_id], repeat=True)
            self._repeats.write(RepeatStore.key(cell.cell_id, unit_of(record)), [record])
            self.counts.num_measured += 1
            self._compare(record, facts[cell.cell_id])
        if due:
            show.note(f"Repeats: {self.counts}")

    def _elsewhere(
        self, own: set[str], facts: Mapping[str, CellFacts], unit: str, count: int
    ) -> dict[Cell, str]:
        """Cells that other shards of the study measured on another device of this model → that device."""
        if not count or not unit:
            return {}
        others = _times(
            (cell for cell in self._study.all_cells if cell.cell_id not in own), facts, self._pool.device.name
        )
        units = ((cell, facts[cell.cell_id].unit) for cell in drawn(others, self._study.seed))
        return dict(islice(((cell, other) for cell, other in units if other not in ("", unit)), count))

    def _known(self, cell: Cell, version: str, unit: str | None) -> Record | None:
        """A repeat of this method version, which another device than `unit` made."""
        return next(
            (
                record
                for record in self._repeats.of_cell(cell.cell_id)
                if record.method_version == version and (unit is None or unit_of(record) != unit)
            ),
            None,
        )

    def _compare(self, repeat: Record, first: CellFacts) -> None:
        time_ms = View(repeat, Hardware()).median_ms
        if time_ms is None or first.time_ms is None:
            self.counts.num_failed += 1
        else:
            self.counts.differences.append(max(time_ms, first.time_ms) / min(time_ms, first.time_ms) - 1)


def _times(cells: Iterable[Cell], facts: Mapping[str, CellFacts], device: str) -> dict[Cell, float]:
    """The times of cells that can be repeated, as this model of device measured them."""
    known = ((cell, facts.get(cell.cell_id)) for cell in cells if may_repeat(cell))
    return {
        cell: entry.time_ms
        for cell, entry in known
        if entry is not None and entry.time_ms and not entry.is_control and entry.device == device
    }
