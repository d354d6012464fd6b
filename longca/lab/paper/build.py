"""The page of the whole study: one offline file, with the data of every exhibit beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from longca.core import VERSION, Hardware, Registry, UserError, in_forks, load_hardware
from longca.lab.advice.many_gpus import verdicts as predicted_verdicts
from longca.lab.claims import MEANINGS, READINGS, STUDY, all_claims, summary
from longca.lab.claims import judged as judged_by_gpu
from longca.lab.paper.analysis.select import devices, earlier_strategies
from longca.lab.paper.contract import Cells, Exhibit, PaperFigure, PaperTable, Section
from longca.lab.paper.facts import coverage, gallery
from longca.lab.paper.links import RunPage, links, run_pages
from longca.lab.paper.page import Judged, ShownExhibit, StudyPage
from longca.lab.paper.provenance import provenance
from longca.lab.paper.published import (
    published_findings,
    published_notes,
    published_pairs,
    published_rates,
    with_published,
)
from longca.lab.paper.repairs import REPAIRS
from longca.lab.report import merged_json, points_json, with_anchors
from longca.lab.report.build import comparable
from longca.lab.report.content import (
    PICK,
    Decided,
    Frame,
    Outcomes,
    compressed,
    decided,
    fields_of,
    script_json,
    templates,
)
from longca.lab.report.content.method_notes import folder_of_documents, method_notes
from longca.lab.report.decide import cases, repeat_rows, views
from longca.lab.report.look import (
    MARKERS,
    Inline,
    MaskDrawing,
    Style,
    inline,
    looks,
    page_templates,
    short_name,
    static_text,
    theme,
    with_shared_styles,
)
from longca.lab.report.series import FAILURES, Unit, for_file, labelled, plain_ids, rate_unit, sampled
from longca.lab.store import UnusableFile, replace_file, require_folder
from longca.lab.store.environments import Environments
from longca.lab.store.export import csv_bytes, export, frame_csv
from longca.lab.store.table import derived, in_order, is_own, of_grid, to_report
from longca.lab.store.text import percent, plural
from longca.lab.studies import Record

if TYPE_CHECKING:
    import pandas as pd

TITLES: dict[Section, str] = {
    "data": "Document lengths",
    "dense": "Dense kernels",
    "sparse": "Block-sparse kernels",
    "memory": "Memory",
    "cp": "Context parallelism",
    "beyond": "Beyond the study",
    "released": "As released",
}
PAGE = "index.html"
DATA = "data"
HERE = Path(__file__).parent / "templates"
OPENING = ("dense_forward", "dense_backward", "sparse_forward", "cp_documents", "as_released")
"""exhibits with the findings at the top of the page"""
SCRIPTS = ("base", "pick", "decide", "figures", "download", "page")  # in the order of their dependencies
LEAST_LENGTHS = (0, 8192, 16384)  # of the chooser: the first one with which it is small enough
MOST_VIEWS = 450_000  # bytes, as the page holds them
SEVERAL = 3  # verdicts that have one note: it is told once, above them


@dataclass(frozen=True)
class _Paper:
    """The content that exhibits are made of."""

    table: pd.DataFrame
    """whose cell ids name one device each (`longca.lab.report.with_anchors`)"""
    published: pd.DataFrame
    """published rates of the table's cells"""
    methods: tuple[str, ...]
    """in the order of legends"""
    masks: list[MaskDrawing]
    """those that the page has a drawing of"""
    pages: list[RunPage]
    """of studies, beside this one"""
    data: Path
    """the folder of the exhibits' data"""

    @cached_property
    def first(self) -> pd.DataFrame:
        """The first record of each cell that was attempted: others have no point."""
        attempted = self.table.loc[self.table.status.isin(("ok", *FAILURES))]
        return attempted.drop_duplicates("cell_id", ignore_index=True)

    @cached_property
    def outcomes(self) -> Outcomes:
        return Outcomes(self.table)

    @cached_property
    def rows(self) -> dict[str, int]:
        """Cell → its row among the page's points."""
        return {cell_id: row for row, cell_id in enumerate(self.first.cell_id)}

    @cached_property
    def variables(self) -> dict[str, str]:
        """Method → CSS variable of its colour."""
        return {method: look.variable for method, look in looks(self.methods).items()}

    @cached_property
    def unit(self) -> Unit:
        """The unit of the page's rates."""
        return rate_unit(self.table.tflops_per_device[~self.table.is_control.astype(bool)].max())

    def devices(self, data: pd.DataFrame, cell_ids: Sequence[str]) -> tuple[str, ...]:
        """The devices behind an exhibit: its own column tells them; else they are all that measured one of
        its cells, or any at all where it names none."""
        if "device" in data:
            return devices(data)
        measured = self.table.loc[self.table.status == "ok"]
        return devices(measured.loc[measured.cell_id.isin(cell_ids)] if cell_ids else measured)

    def pages_of(self, devices: Collection[str]) -> list[RunPage]:
        """The pages of studies that ran on one of these devices, with records of it."""
        studies = set(self.table.study[self.table.device.isin(devices)])
        return [page for page in self.pages if page.study in studies and any(map(page.is_of, devices))]

    def draw(self, exhibit: PaperFigure, data: pd.DataFrame, title: str, number: int) -> Inline:
        """The figure as an element of the page, whose points know their cells.

        Args:
            number: of the exhibit on the page.
        """
        style = Style(self.methods, on_page=True, pictures=frozenset(mask.name for mask in self.masks))
        return inline(exhibit, data, style, short_name(number), title, self.rows, self.variables)

    def points(self) -> str:
        """The tips on points, as the page's own data (`longca.lab.report.rows.points_json`), compressed."""
        notes = published_notes(self.published)
        here = self.first.cell_id.map(notes).where(self.first.peak_percent.notna())
        texts = [
            f"{note}; here {percent(share / 100)}" if isinstance(note, str) else ""
            for note, share in zip(here, self.first.peak_percent, strict=True)
        ]
        homes = self.homes(self.first)
        ids = map(plain_ids, self.first.cell_id)
        names = [
            home.anchor_of(cell_id, device) if home else cell_id
            for home, cell_id, device in zip(homes, ids, self.first.device, strict=True)
        ]
        extra = {"published": texts, "home": [home.address if home else "" for home in homes]}
        return compressed(points_json(labelled(self.first).assign(cell_id=names), extra, self.unit))

    def homes(self, table: pd.DataFrame) -> list[RunPage | None]:
        """The page that shows each row in full: the one of its study and its device; None where there is
        none."""
        rows = list(zip(table.study, table.device, strict=True))
        pages = {
            (study, device): next(
                (page for page in self.pages if page.study == study and page.is_of(device)), None
            )
            for study, device in set(rows)
        }
        return [pages[row] for row in rows]


def build_paper(
    records: Iterable[Record],
    problems: Sequence[UnusableFile],
    folder: Path,
    *,
    hardware: Hardware | None = None,
    environments: Environments | None = None,
    progress: Callable[[str], None] = lambda step: None,
) -> Path:
    """Write `index.html` to the folder, the data of its exhibits to `data/`, and the records' tables beside
    it.

    The same records make the same bytes, where the same pages of studies lie beside the folder: each exhibit
    links to its records there.

    Args:
        records: of cells, and those of play-offs and repeats, which count for the claims alone. Cells of new
            tokens after a context are left out: the study has none.
        problems: files and rows that could not be read; the page names them.
        hardware: what GPUs can do; that of `config/hardware.yaml` if not given.
        environments: listings of the software that measured; they go into the records' files, too.
        progress: is told what is done next.

    Raises:
        UserError: there are no records, or a file cannot be written.
    """
    everything = [record for record in in_order(records) if record.cell.new_tokens is None]
    whole = to_report(everything, problems)
    require_folder(folder)
    progress("deriving the table of all records")
    hardware = load_hardware() if hardware is None else hardware
    judged_table = derived(whole, hardware)
    ordered = [record for record in everything if is_own(record)]
    table = of_grid(judged_table)
    shown_masks = gallery()
    methods = {*table.method, *(method for exhibit in exhibits() for method in exhibit.methods)}
    ranked_table = with_anchors(judged_table)
    own_table = of_grid(ranked_table)
    paper = _Paper(
        own_table,
        published_rates(own_table, hardware),
        tuple(sorted(methods)),
        [mask.drawing for mask in shown_masks.masks],
        run_pages(folder, table.study),
        folder / DATA,
    )
    every = exhibits()
    shown = in_forks(
        lambda number: _shown(every[number], paper, number + 1),
        len(every),
        tell=lambda num_done: progress(f"{num_done} of {len(every)} figures and tables are made"),
    )
    progress("ranking the methods")
    labels = labelled(ranked_table)
    homes = {
        cell_id: home.address_of(plain_ids(cell_id), device)
        for cell_id, device, home in zip(
            own_table.cell_id, own_table.device, paper.homes(own_table), strict=True
        )
        if home
    }
    chooser, least = _chooser(labels, paper, homes)
    about = method_notes(ordered, paper.methods, environments)
    pictures = frozenset(mask.name for mask in paper.masks)
    progress("judging the claims")
    forecasts = {number: verdict.text for number, verdict in predicted_verdicts().items()}
    judged = [
        Judged(
            claim,
            verdicts,
            tuple(
                links([page for page in paper.pages if page.is_of(verdict.gpu)], verdict.cell_ids)
                for _, verdict in verdicts.named
            ),
            forecasts.get(claim.number, ""),
        )
        for claim, verdicts in zip(all_claims(), judged_by_gpu(all_claims(), judged_table), strict=True)
    ]
    notes = Counter(verdict.note for entry in judged for _, verdict in entry.verdicts.named)
    css = static_text("report.css", "decide.css", "figures.css") + (HERE / "paper.css").read_text(
        encoding="utf-8"
    )
    scripts = static_text(*(f"{part}.js" for part in SCRIPTS))
    drawn = [exhibit for exhibit in shown if exhibit.drawing]
    shared = with_shared_styles([exhibit.drawing for exhibit in drawn if exhibit.drawing])
    lighter = {one.exhibit.name: drawing for one, drawing in zip(drawn, shared.drawings, strict=True)}
    shown = [replace(one, drawing=lighter.get(one.exhibit.name)) for one in shown]
    marks = [mark for drawing in shared.drawings for mark in drawing.marks]
    whys = list(dict.fromkeys(why for one in shown for why in one.whys.values()))
    study = StudyPage(
        frame=Frame(VERSION, css, scripts, theme(), MARKERS, paper.variables, about.anchors, paper.masks, pictures, shared.rules, folder_of_documents(folder / PAGE)),  # noqa: E501
        titles=TITLES, shown=shown, judged=judged, findings=_findings(shown),
        conclusion=summary(entry.verdicts for entry in judged), repairs=REPAIRS,
        meanings=MEANINGS, readings=READINGS, study=STUDY,
        notes_of_all=[note for note, count in notes.items() if note and count >= SEVERAL],
        num_measured=len({number for verdict in shown for number in verdict.effects}), gallery=shown_masks, coverage=coverage(table),  # noqa: E501
        provenance=provenance(ordered, table, hardware, paper.pages, environments), num_records=len(ordered), problems=problems,  # noqa: E501
        devices=devices(table.loc[table.status == "ok"]),
        records_of={device: int((table.device == device).sum()) for device in devices(table)},
        section_notes={"cp": earlier_strategies(table)}, notes=about, decided=chooser, least=least,
        repeat_rows=repeat_rows(labels, [case for kind in ("kernel", "cp") for case in cases.cases(labels, kind).standings.values()]),  # noqa: E501
        rate=paper.unit, whys={why: number for number, why in enumerate(whys)}, points=paper.points(),
        facts=compressed(script_json({
            "count": len(paper.first), "looks": paper.variables, "pictures": sorted(pictures),
            "pick": PICK | {"methods": comparable(table, paper.methods)}, "anchors": about.anchors,
            "whys": whys, "rows": shared.rows,
            "homes": True,
            "about": about.tips, **templates(paper.unit)})),
        merged=compressed(merged_json(labelled(paper.first), marks, paper.unit)),
    )  # fmt: skip
    progress("writing the page and its data")
    page = page_templates(HERE).get_template("paper.html.j2").render(fields_of(study.frame, study))
    replace_file(
        folder / DATA / "claims.csv",
        csv_bytes(
            ["number", "label", "reading", "gpu", "status", "finding", "missing", "cell_ids"],
            [
                [
                    entry.claim.number,
                    entry.claim.label,
                    reading,
                    verdict.gpu,
                    verdict.status,
                    verdict.finding,
                    "; ".join(verdict.missing),
                    " ".join(verdict.cell_ids),
                ]
                for entry in judged
                for reading, first in entry.verdicts.named
                for verdict in (first, *first.elsewhere)
            ],
        ),
    )
    export(whole, folder / DATA, environments)
    return replace_file(folder / PAGE, page.encode())


def _findings(shown: Sequence[ShownExhibit]) -> list[ShownExhibit]:
    """The findings at the top of the page: those of `OPENING`, or others if there are no data for some."""
    known = {exhibit.exhibit.name: exhibit for exhibit in shown if exhibit.title}
    ordered = [known[name] for name in dict.fromkeys((*OPENING, *known)) if name in known]
    return ordered[: len(OPENING)]


def exhibits() -> list[Exhibit]:
    """Every exhibit there is, in the order of the page."""
    sections = get_args(Section)
    all_exhibits: list[Exhibit] = Registry("paper_figure").load_all()
    return sorted(
        all_exhibits, key=lambda exhibit: (sections.index(exhibit.section), exhibit.order, exhibit.name)
    )


def _shown(exhibit: Exhibit, paper: _Paper, number: int) -> ShownExhibit:
    """The exhibit, its data written. For one that raises, the reason: one bad plug-in must not cost the
    page."""
    try:
        return _made(exhibit, paper, number)
    except UserError:
        raise
    except Exception as error:  # a plug-in may raise anything
        return ShownExhibit(exhibit, failure=f"{type(error).__name__}: {error}")


def _made(exhibit: Exhibit, paper: _Paper, number: int) -> ShownExhibit:
    data = exhibit.data(paper.table).reset_index(drop=True)
    if not len(data):
        return ShownExhibit(exhibit)
    pairs = published_pairs(data, paper.published)
    file = for_file(with_published(data, pairs))
    replace_file(paper.data / f"{exhibit.name}.csv", frame_csv(file))
    title = exhibit.title(data)
    amount = sampled(data) if "num_cells" in data else plural(len(data), "row")
    cell_ids = exhibit.cell_ids(data)
    measured_on = paper.devices(data, cell_ids)
    shown = ShownExhibit(
        exhibit,
        title,
        amount,
        effects=exhibit.effects(data),
        published=published_findings(pairs),
        num_cells=len(cell_ids),
        links=links(paper.pages_of(measured_on), map(plain_ids, cell_ids)),
        devices=measured_on,
    )
    if isinstance(exhibit, PaperFigure):
        return replace(
            shown, drawing=paper.draw(exhibit, data, title, number), blanks=paper.outcomes.blanks(data)
        )
    if isinstance(exhibit, PaperTable):
        cells = exhibit.cells(data)
        return replace(shown, cells=cells, whys=_whys(cells, paper.outcomes))
    raise TypeError("it is neither a figure nor a table")


def _chooser(labels: pd.DataFrame, paper: _Paper, homes: Mapping[str, str]) -> tuple[Decided | None, int]:
    """The chooser, and the least of its lengths if the page has no room for all (0)."""
    chooser: Decided | None = None
    least = 0
    for least in LEAST_LENGTHS:
        kept = labels.loc[labels.seqlen >= least]
        decision = views.decision(labels if not least else kept, apart=True) if len(kept) else None
        if decision is None:
            return chooser, 0
        chooser = decided.decided(decision, paper.rows, paper.unit, homes)
        if len(chooser.views.encode()) <= MOST_VIEWS:
            return chooser, least
    return chooser, least


def _whys(cells: Cells, outcomes: Outcomes) -> dict[tuple[int, int], str]:
    """Why cells of a table are empty, where its columns are methods."""
    return {
        (row, column): outcomes.why(cells.header[column], cell_ids)
        for row, (texts, cell_ids) in enumerate(zip(cells.rows, cells.cell_ids, strict=False))
        for column in range(cells.num_keys, len(texts))
        if not texts[column]
    }
