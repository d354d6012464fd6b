"""The data of the study's page: all that its templates show, computed once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from longca.lab.claims import Claim, Status, Verdicts
from longca.lab.paper.contract import Cells, Exhibit, Section
from longca.lab.paper.facts import Coverage, Gallery
from longca.lab.paper.links import Link
from longca.lab.paper.provenance import StudyProvenance
from longca.lab.paper.repairs import Repair
from longca.lab.report.content import NOT_ASKED, Blank, Decided, Frame, words_text
from longca.lab.report.content.method_notes import MethodNotes
from longca.lab.report.decide import SHORT_STATUS, RepeatRow
from longca.lab.report.look import Inline
from longca.lab.report.series import Unit
from longca.lab.store import UnusableFile
from longca.lab.store.text import NONE, short_device


@dataclass(frozen=True)
class ShownExhibit:
    """An exhibit as the page shows it. No finding where there are no data for it."""

    exhibit: Exhibit
    title: str = ""
    amount: str = ""
    drawing: Inline | None = None
    cells: Cells | None = None
    effects: dict[int, str] = field(default_factory=dict)
    """defect of the released code → what the data say of it"""
    failure: str = ""
    """why it could not be made"""
    published: tuple[str, ...] = ()
    """how its rates compare with published ones"""
    num_cells: int = 0
    """those behind it"""
    links: tuple[Link, ...] = ()
    """to their records"""
    devices: tuple[str, ...] = ()
    """those that measured them"""
    blanks: tuple[Blank, ...] = ()
    """where its lines have none of a method, and why"""
    whys: dict[tuple[int, int], str] = field(default_factory=dict)
    """(row, column) → why a cell of the table is empty"""

    @property
    def row_methods(self) -> list[str]:
        """The method of each row of the table: its kernel, its strategy, or both; "" without one."""
        if self.cells is None:
            return []
        keys = self.cells.header[: self.cells.num_keys]
        places = [keys.index(name) for name in ("strategy", "method", "kernel") if name in keys]
        return ["+".join(filter(None, (row[place] for place in places))) for row in self.cells.rows]

    def word(self, row: int, column: int) -> str:
        """The word in place of a number that is not there; "" if nobody asked for it."""
        status = self.whys.get((row, column), NOT_ASKED).partition(":")[0]
        return "" if status == NOT_ASKED else SHORT_STATUS.get(status, NONE)

    @property
    def blank_note(self) -> str:
        """The meaning of its words and of its empty cells; "" if all have a number."""
        if self.cells is None or not any("" in row for row in self.cells.rows):
            return ""
        if not self.whys:
            of = "no record has" if self.exhibit.needs_records else "the case does not have"
            return f"Empty cells: {of} such a number."
        return words_text("Cells", [why.partition(":")[0] for why in self.whys.values()])

    @property
    def headline(self) -> str:
        """The beginning of the finding, for each device that it names."""
        return "; ".join(group[0] for group in self._groups)

    @property
    def details(self) -> list[tuple[str, str]]:
        """The rest of the finding, as (device, sentence), with "" where all devices share it. Empty if the
        headline has it all."""
        names = [short_device(device) for device in self.devices]
        several = len(self._groups) > 1
        pairs = []
        for first, *rest in self._groups:
            device = next((name for name in names if f"on {name} " in first), "")
            if rest:
                pairs.append((device if several else "", "; ".join(rest)))
        return pairs

    @cached_property
    def _groups(self) -> list[list[str]]:
        """The parts of the finding, those of each device together, with short names of devices."""
        title = self.title
        for device in self.devices:
            title = title.replace(device, short_device(device))
        starts = tuple(f"on {short_device(device)} " for device in self.devices)
        groups: list[list[str]] = []
        for part in title.split("; "):
            if groups and not (starts and part.startswith(starts)):
                groups[-1].append(part)
            else:
                groups.append([part])
        return groups


@dataclass(frozen=True)
class Judged:
    """A claim and what the records say of it."""

    claim: Claim
    verdicts: Verdicts
    links: tuple[tuple[Link, ...], ...]
    """to the records behind the findings, of each verdict"""
    predicted: str = ""
    """what is predicted of it for many GPUs; never part of a verdict"""


@dataclass(frozen=True)
class StudyPage:
    """The study's page. The fields are the names that the templates use."""

    frame: Frame
    titles: Mapping[Section, str]
    shown: Sequence[ShownExhibit]
    findings: Sequence[ShownExhibit]
    """those at the top of the page"""
    judged: Sequence[Judged]
    conclusion: str
    """the number of verdicts of each status"""
    meanings: Mapping[Status, str]
    readings: Mapping[str, str]
    study: str
    """its address"""
    notes_of_all: Sequence[str]
    """notes that several verdicts have"""
    repairs: Sequence[Repair]
    num_measured: int
    """repairs with a measured or counted effect"""
    gallery: Gallery
    coverage: Coverage
    provenance: StudyProvenance
    num_records: int
    problems: Sequence[UnusableFile]
    devices: Sequence[str]
    records_of: Mapping[str, int]
    section_notes: Mapping[str, str]
    """section → a note on it"""
    notes: MethodNotes
    """what each method is"""
    decided: Decided | None
    """the chooser; None if nothing was timed"""
    least: int
    """the least of its lengths; 0 if it has all"""
    repeat_rows: Sequence[RepeatRow]
    rate: Unit
    whys: Mapping[str, int]
    """why a cell is empty → its place in the facts"""
    points: str
    """JSON of the points of figures"""
    facts: str
    """JSON of what the scripts need to lay them out"""
    merged: str
    """JSON of the points of several cells"""
