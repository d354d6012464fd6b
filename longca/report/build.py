"""The report: one HTML page that needs no other file. Its figures and tables are also written as files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from longca import __version__
from longca.core.errors import UserError
from longca.core.plugin import Registry
from longca.core.record import STATUSES, Record
from longca.report import answers, matrix, tables, winners
from longca.report.rows import rows_json
from longca.report.series import labelled, rate_unit, sampled
from longca.report.style import Style, page_templates, static_text, theme
from longca.report.svg import draw, inline
from longca.store.cells import UnusableFile
from longca.store.columns import COLUMNS
from longca.store.export import csv_bytes, export
from longca.store.files import replace_file
from longca.store.hardware import Hardware, load_hardware
from longca.store.table import derived, in_order
from longca.store.text import plural

if TYPE_CHECKING:
    import pandas as pd

    from longca.report.contract import Figure

MAX_BYTES = 3_000_000
SECTIONS = {"dense": "Dense kernels", "sparse": "Block-sparse kernels", "cp": "Context parallelism", "memory": "Memory",
            "accuracy": "Accuracy", "noise": "Noise and ceilings"}
LEVELS = (  # what the page holds, and what it says of the rest; the first that is small enough is taken
    ({"narrow": True, "samples": True, "details": True}, ""),
    ({"narrow": False, "samples": True, "details": True}, "The figures' narrow forms"),
    ({"narrow": False, "samples": False, "details": True}, "The figures' narrow forms and the records' samples"),
    ({"narrow": False, "samples": False, "details": False}, "The figures' narrow forms and the records' details"))


@dataclass(frozen=True)
class Drawn:
    """A figure as the page shows it; no drawings where there are no data."""

    name: str
    label: str
    title: str
    subtitle: str
    caption: str
    wide: str = ""
    narrow: str = ""
    failure: str = ""
    """why it could not be drawn"""

    @property
    def is_empty(self) -> bool:
        """True if there are no data for the figure."""
        return not (self.wide or self.failure)


def build(records: Iterable[Record], problems: Sequence[UnusableFile], out: Path, *, study_title: str,
          hardware: Hardware | None = None) -> Path:
    """Write the page to `out`; beside `report.html` its figures to `figures/`, and the records' tables where there are none yet.

    A page of another name stands alone: several side by side would take each other's files for their own.

    Args:
        problems: files and rows that could not be read; the page names them.
        study_title: the page's title.
        hardware: what GPUs can do; that of `load_hardware` if not given.

    Raises:
        UserError: there are no records, or a file cannot be written.
    """
    ordered = in_order(records)
    if not ordered:
        raise UserError("There are no records to report on", todo="" if problems else "Measure first with `longca run`",
                        why=f"{plural(len(problems), 'file')} could not be read, first {problems[0]}" if problems else "")
    if out.is_dir():
        raise UserError(f"Cannot write '{out}'", why="it is a folder", todo="Give the page a name")
    hardware = load_hardware() if hardware is None else hardware
    table = derived(ordered, hardware)
    named = labelled(table)
    methods = _methods(table)
    beside = out.parent if out.name == "report.html" else None
    figures: dict[str, list[Drawn]] = {section: [] for section in SECTIONS}
    for figure in sorted(Registry("figure").load_all(), key=lambda figure: (figure.order, figure.name)):
        figures[figure.section].append(_drawn(figure, table, methods, beside))
    context = {
        "study_title": study_title, "num_records": len(ordered), "problems": problems, "sections": SECTIONS,
        "figures": figures, "alone": beside is None, "columns": COLUMNS,
        "statuses": answers.statuses(table), "tiles": answers.tiles(table),
        "fastest": [(kind, found) for kind in ("kernel", "cp") if (found := winners.rankings(table, kind))],
        "matrices": matrix.matrices(table), "reasons": matrix.reasons(table), "worst_errors": tables.worst_errors(ordered),
        "waits": tables.waits(table), "ceilings": tables.ceilings(table), "machines": tables.machines(ordered, hardware),
        "software": tables.software(ordered),
        "has_product": bool(table.ceiling_tflops.notna().any()),
        "runs": tables.runs(table), "methods": tables.methods(table), "series": {method: index for index,
                                                                                 method in enumerate(methods)},
        "downloads": _downloads(ordered, beside) if beside else [], "all_statuses": STATUSES, "theme": theme(),
        "rate": asdict(rate_unit(table.tflops_per_device[~table.is_control.astype(bool)].max())) | {"count": len(ordered)},
        "devices": _counted(table.device), "dates": sorted({str(start)[:10] for start in table.started_at}),
        "commits": _counted(table.git_sha), "css": static_text("report.css"), "js": static_text("report.js"),
        "generator": __version__,
    }
    template = page_templates().get_template("page.html.j2")
    for level, left_out in LEVELS:
        rows = rows_json(ordered, named, samples=level["samples"], details=level["details"])
        page = template.render(context | {"rows": rows, "narrow": level["narrow"], "left_out": left_out})
        if len(page.encode()) <= MAX_BYTES:
            break
    return replace_file(out, page.encode())


def _methods(table: pd.DataFrame) -> tuple[str, ...]:
    """Kernels, then strategies, then controls, each by name: the order that gives them their colours."""
    groups = (table[(table.kind == "kernel") & ~table.is_control.astype(bool)], table[table.kind == "cp"],
              table[table.is_control.astype(bool)])
    return tuple(dict.fromkeys(method for group in groups for method in sorted(set(group.method))))


def _drawn(figure: Figure, table: pd.DataFrame, methods: tuple[str, ...], beside: Path | None) -> Drawn:
    """The figure, and its files in `figures/` of that folder. For one that raises, the reason: one bad plug-in must not cost the page."""
    try:
        return _draw(figure, table, methods, beside)
    except UserError:
        raise
    except Exception as error:  # a plug-in may raise anything
        return Drawn(figure.name, figure.label, figure.label, "", figure.caption, failure=f"{type(error).__name__}: {error}")


def _draw(figure: Figure, table: pd.DataFrame, methods: tuple[str, ...], beside: Path | None) -> Drawn:
    data = figure.data(table)
    if not len(data):
        return Drawn(figure.name, figure.label, figure.label, "", figure.caption)
    title = figure.title(data)
    svg = draw(figure, data, Style(methods))
    if beside:
        replace_file(beside / "figures" / f"{figure.name}.svg", svg.encode())
        values = data.astype(object).where(data.notna(), None).values.tolist()
        replace_file(beside / "figures" / f"{figure.name}.csv", csv_bytes(data.columns, values))
    devices = ", ".join(sorted({device for device in table.device[table.status == "ok"] if device}))
    number_of = sampled(data) if "num_cells" in data else plural(len(data), "cell")
    return Drawn(figure.name, figure.label, title, f"{devices} · {number_of}", figure.caption, inline(svg, figure.name, title),
                 inline(draw(figure, data, Style(methods, narrow=True)), f"{figure.name}-narrow", title))


def _downloads(records: list[Record], folder: Path) -> list[str]:
    """The records' files beside the page; those that are there for other records stay as they are and are not offered."""
    names = ["records.parquet", "records.csv", "records.json"]
    if not any((folder / name).exists() for name in names):
        export(records, folder)
        return names
    import tempfile

    with tempfile.TemporaryDirectory() as fresh:
        export(records, Path(fresh))
        return [name for name in names
                if (folder / name).exists() and (folder / name).read_bytes() == (Path(fresh) / name).read_bytes()]


def _counted(column: pd.Series) -> list[tuple[str, int]]:
    return [(str(value), int(count)) for value, count in sorted(column[column != ""].value_counts().items(),
                                                                key=lambda item: -item[1])]
