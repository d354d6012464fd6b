"""The report: one self-contained HTML page. Its figures and tables are also written as files."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longca.core.errors import UserError
from longca.core.plugin import Registry
from longca.core.version import VERSION
from longca.lab.ranking.table import is_beside
from longca.lab.report import answers, matrix, tables, winners
from longca.lab.report.decide import views
from longca.lab.report.decide.cases import cases
from longca.lab.report.decide.predicted import with_predictions
from longca.lab.report.decide.repeats import repeat_rows
from longca.lab.report.index import overviews
from longca.lab.report.look.colours import MARKERS, looks, theme
from longca.lab.report.look.masks import mask_drawings
from longca.lab.report.look.style import Style
from longca.lab.report.look.svg import Inline, draw, inline
from longca.lab.report.look.template import page_templates, static_text
from longca.lab.report.rows import on_page, rows_json
from longca.lab.report.series import for_file, labelled, mask_order, rate_unit, sampled
from longca.lab.store.cells import UnusableFile
from longca.lab.store.columns import COLUMNS
from longca.lab.store.environments.images import image_lists, own_lists
from longca.lab.store.environments.listings import Environments
from longca.lab.store.environments.summary import summary_of
from longca.lab.store.export import EXPORTED, export_files, frame_csv
from longca.lab.store.files import replace_file
from longca.lab.store.hardware import Hardware, load_hardware
from longca.lab.store.table import columns, frame, to_report
from longca.lab.store.text import plural
from longca.lab.store.view import NOISY
from longca.lab.studies.record import STATUSES, Record

if TYPE_CHECKING:
    import pandas as pd

    from longca.lab.report.contract import Figure

SCRIPTS = ("base", "decide", "records", "figures", "page")  # in the order of their dependencies
MAX_BYTES = 4_000_000
REPEATS = (
    "Rows “paper compat” show a mask again, in the definition of LongCA-bench's released code; not every "
    "method was measured there, "
    "so that counts, worst shares and families exclude them. "
)
MOST_LINKS = 3  # named cells for each reason
SECTIONS = {
    "dense": "Dense kernels",
    "sparse": "Block-sparse kernels",
    "cp": "Context parallelism",
    "predicted": "Predicted beside measured",
    "memory": "Memory and energy",
    "accuracy": "Accuracy",
    "noise": "Noise and ceilings",
}
# levels of detail of the page's records, with a note on the rest; the first one below the size limit is used
LEVELS = (
    ({"samples": True, "details": True}, ""),
    ({"samples": False, "details": True}, "The records' samples"),
    ({"samples": False, "details": False}, "The records' details"),
)


@dataclass(frozen=True)
class Drawn:
    """A figure of the page; without data it has no drawing."""

    name: str
    label: str
    title: str
    subtitle: str
    caption: str
    drawing: Inline | None = None
    failure: str = ""
    """the error that prevented the drawing"""

    @property
    def is_empty(self) -> bool:
        """True if there are no data for the figure."""
        return self.drawing is None and not self.failure


@dataclass(frozen=True)
class _Files:
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


@dataclass(frozen=True)
class _Paper:
    """The context of figures: the study's methods, the row of each record, the masks with drawings, and the
    folder for side files."""

    methods: tuple[str, ...]
    rows: dict[str, int]
    pictures: frozenset[str]
    beside: Path | None
    is_part: bool
    """True if the page contains only some of the records"""

    def style(self, **options: Any) -> Style:
        return Style(self.methods, cells=frozenset(self.rows) if self.is_part else None, **options)


def build(
    records: Iterable[Record],
    problems: Sequence[UnusableFile],
    out: Path,
    *,
    study_title: str,
    hardware: Hardware | None = None,
    sources: Sequence[Path] = (),
    environments: Environments | None = None,
    lists: Sequence[Path] | None = None,
) -> Path:
    """Write the page to `out`, and next to `report.html` its figures to `figures/` and missing tables of
    records.

    A page of another name has no side files, since several pages in one folder would overwrite each other's.

    Args:
        problems: unreadable files and rows, which the page names.
        study_title: the page's title.
        hardware: peak rates of GPUs; by default those of `load_hardware`.
        sources: files of the records, if any; the page links to those next to it.
        environments: software listings; they are also written to the records' files.
        lists: content lists of images, for comparison with environments; by default the project's own.

    Raises:
        UserError: there are no records, or a file cannot be written.
    """
    everything = to_report(records, problems)
    if out.is_dir():
        raise UserError(f"Cannot write '{out}'", why="it is a folder", todo="Give the page a name")
    hardware = load_hardware() if hardware is None else hardware
    environments = Environments() if environments is None else environments
    values = columns(everything, hardware)
    whole = with_predictions(frame(values), everything)
    table = labelled(whole)
    ordered = [record for record, beside in zip(everything, is_beside(whole), strict=True) if not beside]
    methods = _methods(table)
    beside = out.parent if out.name == "report.html" else None
    decided = views.decision(table)
    fastest = [(kind, rankings) for kind in ("cp", "kernel") if (rankings := winners.rankings(table, kind))]
    standings = [case for kind in ("kernel", "cp") for case in cases(table, kind).standings.values()]
    images = tables.images(ordered)
    reasons, worst_errors = matrix.reasons(table), tables.worst_errors(ordered)
    linked = {cell_id for reason in reasons for cell_id in reason.cell_ids[:MOST_LINKS]} | {
        worst.cell_id for worst in worst_errors
    }
    steady = tables.steadiness(table)
    linked |= {cell.cell_id for cell in steady.drifting}
    linked |= {
        *winners.cells(fastest),
        *(views.cells(decided) if decided else ()),
        *table.cell_id[table.is_control.astype(bool)],
    }
    shown = on_page(table, linked)
    # the first row of a cell with several records
    rows = {cell_id: row for row, cell_id in reversed(list(enumerate(table.cell_id.iloc[shown])))}
    names = dict(zip(table.mask_label, table["mask"], strict=True))
    shown_masks = mask_drawings(
        dict.fromkeys(names[label] for label in mask_order(table[~table.is_control.astype(bool)]))
    )
    pictures = frozenset(mask.name for mask in shown_masks)
    paper = _Paper(methods, rows, pictures, beside, len(shown) < len(table))
    figures: dict[str, list[Drawn]] = {section: [] for section in SECTIONS}
    for number, figure in enumerate(
        sorted(Registry("figure").load_all(), key=lambda figure: (figure.order, figure.name))
    ):
        drawn = _drawn(figure, table, f"f{number}", paper)
        if not drawn.is_empty:
            figures[figure.section].append(drawn)
    controls = bool((table.is_control.astype(bool)).any())
    kept = {"accuracy": bool(worst_errors), "noise": controls}  # sections with their own tables
    sections = {
        section: title for section, title in SECTIONS.items() if figures[section] or kept.get(section)
    }
    rate = asdict(rate_unit(table.tflops_per_device[~table.is_control.astype(bool)].max()))
    variables = {method: look.variable for method, look in looks(methods).items()}
    context = {
        "study_title": study_title,
        "num_records": len(ordered),
        "num_shown": len(shown),
        "problems": problems,
        "sections": sections,
        "figures": figures,
        "alone": beside is None,
        "columns": COLUMNS,
        "statuses": answers.statuses(table),
        "tiles": answers.tiles(table, [kind for kind, _ in fastest]),
        "fastest": fastest,
        "matrices": matrix.matrices(table),
        "reasons": reasons,
        "worst_errors": worst_errors,
        "waits": tables.waits(table),
        "ceilings": tables.ceilings(table),
        "machines": tables.machines(ordered, hardware),
        "software": tables.software(ordered),
        "images": images,
        "finding_of_images": tables.finding_of_images(images),
        "environments": summary_of(
            ordered, environments, image_lists(own_lists() if lists is None else lists)
        ),
        "steadiness": steady,
        "has_product": bool(table.ceiling_tflops.notna().any()),
        "runs": tables.runs(table),
        "methods": tables.methods(table),
        "looks": variables,
        "repeat_rows": repeat_rows(table, standings),
        "files": _files(
            out, sources, _downloads(export_files(everything, values, environments), beside) if beside else []
        ),
        "overviews": overviews(out),
        "all_statuses": STATUSES,
        "theme": theme(),
        "rate": rate,
        "names": names,
        "masks": shown_masks,
        "pictures": pictures,
        "markers": MARKERS,
        "short_status": matrix.SHORT | views.SHORT,
        "decision": decided,
        "described": views.described(decided.default, decided) if decided else "",
        "noisy": NOISY,
        "repeats": REPEATS if decided and any(view.has_repeats for view in decided.views) else "",
        "has_lone": bool(
            decided and any(entry.is_alone for view in decided.views for entry in view.entries.values())
        ),
        "views": views.views_json(decided, rows) if decided else "",
        "facts": {
            "rate": rate,
            "count": len(shown),
            "all": len(ordered),
            "looks": variables,
            "pictures": [mask.name for mask in shown_masks],
            "short": matrix.SHORT | views.SHORT,
        },
        "most_links": MOST_LINKS,
        "devices": _counted(table.device),
        "dates": sorted({str(start)[:10] for start in table.started_at}),
        "commits": _counted(table.git_sha),
        "css": static_text("report.css", "decide.css", "figures.css"),
        "js": static_text(*(f"{part}.js" for part in SCRIPTS)),
        "generator": VERSION,
    }
    template = page_templates().get_template("page.html.j2")
    records_shown, table_shown = [ordered[row] for row in shown], table.iloc[shown]
    page = ""
    for level, left_out in LEVELS:
        page = template.render(
            context | {"rows": rows_json(records_shown, table_shown, **level), "left_out": left_out}
        )
        if len(page.encode()) <= MAX_BYTES:
            break
    return replace_file(out, page.encode())


def _methods(table: pd.DataFrame) -> tuple[str, ...]:
    """Kernels, then strategies, then controls, each sorted by name: the order of legends."""
    groups = (
        table[(table.kind == "kernel") & ~table.is_control.astype(bool)],
        table[table.kind == "cp"],
        table[table.is_control.astype(bool)],
    )
    return tuple(dict.fromkeys(method for group in groups for method in sorted(set(group.method))))


def _drawn(figure: Figure, table: pd.DataFrame, short: str, paper: _Paper) -> Drawn:
    """The figure, and its files in `figures/`. If it raises, the error is kept, since a broken plug-in must
    not prevent the page."""
    try:
        return _draw(figure, table, short, paper)
    except UserError:
        raise
    except Exception as error:  # a plug-in may raise anything
        return Drawn(
            figure.name,
            figure.label,
            figure.label,
            "",
            figure.caption,
            failure=f"{type(error).__name__}: {error}",
        )


def _draw(figure: Figure, table: pd.DataFrame, short: str, paper: _Paper) -> Drawn:
    data = figure.data(table)
    if not len(data):
        return Drawn(figure.name, figure.label, figure.label, "", figure.caption)
    title = figure.title(data)
    if paper.beside:
        replace_file(
            paper.beside / "figures" / f"{figure.name}.svg", draw(figure, data, paper.style()).encode()
        )
        replace_file(paper.beside / "figures" / f"{figure.name}.csv", frame_csv(for_file(data)))
    devices = ", ".join(sorted({device for device in table.device[table.status == "ok"] if device}))
    number_of = sampled(data) if "num_cells" in data else plural(len(data), "cell")
    if "cell_id" in data and paper.is_part:
        number_of += f", {data.cell_id.isin(list(paper.rows)).sum():,} of them as dots"
    drawing = inline(
        draw(figure, data, paper.style(on_page=True, pictures=paper.pictures)), short, title, paper.rows
    )
    return Drawn(figure.name, figure.label, title, f"{devices} · {number_of}", figure.caption, drawing)


def _files(out: Path, sources: Sequence[Path], downloads: list[str]) -> _Files:
    here = dict.fromkeys(path.name for path in sources if path.resolve().parent == out.resolve().parent)
    whole = len(here) == len({path.resolve() for path in sources})
    command = shlex.join(["longca", "report", *here, "--out", out.name]) if here and whole else ""
    return _Files(downloads, [name for name in here if name not in downloads], command)


def _downloads(exported: Mapping[str, Iterable[bytes]], folder: Path) -> list[str]:
    """The records' files next to the page; existing files of other records are kept and not linked."""
    are_new = not any((folder / name).exists() for name in EXPORTED)
    offered = []
    for name, chunks in exported.items():
        if are_new:
            replace_file(folder / name, chunks)
        if are_new or _holds(folder / name, chunks):
            offered.append(name)
    return offered


def _holds(path: Path, chunks: Iterable[bytes]) -> bool:
    """True if a file has exactly these chunks as content."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return all(file.read(len(chunk)) == chunk for chunk in chunks) and not file.read(1)


def _counted(column: pd.Series) -> list[tuple[str, int]]:
    return [
        (str(value), int(count))
        for value, count in sorted(column[column != ""].value_counts().items(), key=lambda item: -item[1])
    ]
