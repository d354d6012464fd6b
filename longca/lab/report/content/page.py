"""The data of a page: all that its templates and scripts show, computed once. They only lay it out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from longca.lab.report.answers import Tile
from longca.lab.report.content.controls import ControlRow
from longca.lab.report.content.decided import Decided
from longca.lab.report.content.drawn import Drawn
from longca.lab.report.content.method_notes import UNNAMED, MethodNotes
from longca.lab.report.decide.league import League
from longca.lab.report.decide.repeats import RepeatRow
from longca.lab.report.index import Page as LinkedPage
from longca.lab.report.look.masks import MaskDrawing
from longca.lab.report.matrix import Matrix, Reason
from longca.lab.report.series import Unit
from longca.lab.report.tables import Folded, ImageUse, MethodVersion, SampleFacts, StudyRun, WorstError
from longca.lab.report.winners import Ranking
from longca.lab.store import UnusableFile
from longca.lab.store.columns import Column
from longca.lab.store.environments import EnvironmentSummary


@dataclass(frozen=True)
class Files:
    """The files of records next to a page, by name."""

    downloads: list[str]
    """tables of all its records"""
    sources: list[str]
    """its sources, if they are not among the downloads"""
    command: str
    """the command that rebuilds the page from its sources; "" if some are elsewhere"""

    @property
    def tables(self) -> list[str]:
        """The files with the columns of the derived table."""
        return [name for name in (*self.downloads, *self.sources) if name.endswith((".csv", ".parquet"))]

    @property
    def holder(self) -> str:
        """A description of the location of all records."""
        names = [name for name in self.downloads if name.endswith(".csv")] or (
            self.sources if self.command else []
        )
        return f"{' and '.join(names)} beside this page" if names else "the files that it was made from"


def fields_of(*parts: Any) -> dict[str, Any]:
    """The fields of these dataclasses by name: the names that templates use."""
    return {field.name: getattr(part, field.name) for part in parts for field in fields(part)}


@dataclass(frozen=True)
class Frame:
    """The head, the style and the scripts of a page."""

    generator: str
    css: str
    js: str
    theme: Mapping[str, tuple[str, str, str]]
    markers: Mapping[str, str]
    looks: Mapping[str, str]
    """method → CSS variable of its colour"""
    anchors: Mapping[str, str]
    """method → id of what the page says of it"""
    masks: Sequence[MaskDrawing]
    pictures: frozenset[str]
    """masks with drawings"""
    drawn_css: str
    """rules of the classes of drawings"""
    documents: str
    """the way to the project's documents; "" where the page does not lie among them"""
    unnamed: str = UNNAMED


@dataclass(frozen=True)
class PageData:
    """A page of records. The fields are the names that the templates use."""

    frame: Frame
    study_title: str
    num_records: int
    num_cells: int
    num_shown: int
    problems: Sequence[UnusableFile]
    devices: Sequence[tuple[str, int]]
    dates: Sequence[str]
    commits: Sequence[tuple[str, int]]
    overviews: Sequence[LinkedPage]
    files: Files
    alone: bool
    """True if there are no files beside the page"""

    decided: Decided | None
    earlier: str
    """what holds for records of earlier kernels; "" if there are none"""
    statuses: Sequence[tuple[str, int, float]]
    tiles: Sequence[Tile]
    fastest: Sequence[tuple[str, list[Ranking]]]
    league: League | None
    """kernels whose gradients have the same bits in every run"""
    repeats: str
    repeat_rows: Sequence[RepeatRow]
    names: Mapping[str, str]
    """mask's label → its pattern"""
    matrices: Sequence[Matrix]
    reasons: Sequence[Reason]
    most_links: int

    sections: Mapping[str, str]
    details: Collection[str]
    """sections that open on a click"""
    figures: Mapping[str, Sequence[Drawn]]
    worst_errors: Sequence[WorstError]
    steadiness: SampleFacts
    waits: Sequence[ControlRow]
    ceilings: Sequence[ControlRow]
    has_product: bool
    rate: Unit

    machines: Sequence[Folded]
    environments: EnvironmentSummary
    images: Sequence[ImageUse]
    finding_of_images: str
    software: Folded | None
    runs: Sequence[StudyRun]
    methods: Sequence[MethodVersion]
    notes: MethodNotes
    """what each method is"""
    columns: Sequence[Column]

    facts: str
    """what the scripts need to lay out the records; like `merged` and `rows` compressed JSON"""
    merged: str
    """the points that are not one whole cell"""
    not_asked: str = "not asked: no record of it"
    rows: str = ""
    """the records"""
    left_out: str = ""
    """what `rows` lacks"""
