"""The page of the whole study: one offline file, with the data of every exhibit beside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from longca import __version__
from longca.claims.contract import Claim, Verdict, all_claims, summary
from longca.core.errors import UserError
from longca.core.plugin import Registry
from longca.core.record import Record
from longca.paper.contract import Cells, Exhibit, PaperFigure, PaperTable, Section
from longca.paper.facts import coverage, gallery
from longca.paper.repairs import REPAIRS
from longca.report.look.colours import theme
from longca.report.look.style import Style
from longca.report.look.svg import draw, inline
from longca.report.look.template import page_templates, static_text
from longca.report.series import sampled
from longca.store.cells import UnusableFile
from longca.store.export import csv_bytes, export, frame_csv
from longca.store.files import replace_file
from longca.store.hardware import Hardware
from longca.store.table import derived, to_report
from longca.store.text import plural

if TYPE_CHECKING:
    import pandas as pd

TITLES: dict[Section, str] = {"data": "Document lengths", "dense": "Dense kernels", "sparse": "Block-sparse kernels", "memory": "Memory",
                              "cp": "Context parallelism", "beyond": "Beyond the study", "released": "As released"}
PAGE, DATA = "index.html", "data"
HERE = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class ShownExhibit:
    """An exhibit as the page shows it. No finding where there are no data for it."""

    exhibit: Exhibit
    title: str = ""
    amount: str = ""
    svg: str = ""
    cells: Cells | None = None
    effects: dict[int, str] = field(default_factory=dict)
    """defect of the released code → what the data say of it"""
    failure: str = ""
    """why it could not be made"""


@dataclass(frozen=True)
class Judged:
    """A claim and what the records say of it."""

    claim: Claim
    verdict: Verdict


def build_paper(records: Iterable[Record], problems: Sequence[UnusableFile], folder: Path, *,
                hardware: Hardware | None = None) -> Path:
    """Write `index.html` to the folder, the data of its exhibits to `data/`, and the records' tables beside it.

    The same records make the same bytes.

    Args:
        problems: files and rows that could not be read; the page names them.
        hardware: what GPUs can do; that of `config/hardware.yaml` if not given.

    Raises:
        UserError: there are no records, or a file cannot be written.
    """
    ordered = to_report(records, problems)
    if folder.is_file():
        raise UserError(f"Cannot write to '{folder}'", why="it is a file", todo="Give a folder")
    table = derived(ordered, hardware)
    methods = tuple(sorted(set(table.method)))
    shown = [_shown(exhibit, table, methods, folder / DATA) for exhibit in exhibits()]
    judged = [Judged(claim, claim.judge(table)) for claim in all_claims()]
    context: dict[str, Any] = {
        "generator": __version__, "titles": TITLES, "shown": shown, "judged": judged,
        "conclusion": summary(entry.verdict for entry in judged), "repairs": REPAIRS,
        "num_measured": len({number for one in shown for number in one.effects}), "gallery": gallery(), "coverage": coverage(table),
        "num_records": len(ordered), "devices": sorted({device for device in table.device[table.status == "ok"] if device}),
        "problems": problems, "theme": theme(), "css": static_text("report.css") + (HERE / "paper.css").read_text(encoding="utf-8"),
    }
    page = page_templates(HERE).get_template("paper.html.j2").render(context)
    replace_file(folder / DATA / "claims.csv", csv_bytes(
        ["number", "label", "status", "finding", "missing", "cell_ids"],
        [[entry.claim.number, entry.claim.label, entry.verdict.status, entry.verdict.finding, "; ".join(entry.verdict.missing),
          " ".join(entry.verdict.cell_ids)] for entry in judged]))
    export(ordered, folder / DATA)
    return replace_file(folder / PAGE, page.encode())


def exhibits() -> list[Exhibit]:
    """Every exhibit there is, in the order of the page."""
    sections = get_args(Section)
    found: list[Exhibit] = Registry("paper_figure").load_all()
    return sorted(found, key=lambda exhibit: (sections.index(exhibit.section), exhibit.order, exhibit.name))


def _shown(exhibit: Exhibit, table: pd.DataFrame, methods: tuple[str, ...], folder: Path) -> ShownExhibit:
    """The exhibit, and its data in that folder. For one that raises, the reason: one bad plug-in must not cost the page."""
    try:
        data = exhibit.data(table)
        if not len(data):
            return ShownExhibit(exhibit)
        replace_file(folder / f"{exhibit.name}.csv", frame_csv(data))
        title, effects = exhibit.title(data), exhibit.effects(data)
        amount = sampled(data) if "num_cells" in data else plural(len(data), "row")
        if isinstance(exhibit, PaperFigure):
            svg = inline(draw(exhibit, data, Style(methods)), exhibit.name, title).svg
            return ShownExhibit(exhibit, title, amount, svg=svg, effects=effects)
        if isinstance(exhibit, PaperTable):
            return ShownExhibit(exhibit, title, amount, cells=exhibit.cells(data), effects=effects)
        raise TypeError("it is neither a figure nor a table")
    except UserError:
        raise
    except Exception as error:  # a plug-in may raise anything
        return ShownExhibit(exhibit, failure=f"{type(error).__name__}: {error}")
