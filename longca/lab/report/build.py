"""The report: one self-contained HTML page. Its figures and tables are also written as files."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from longca.core import VERSION, Hardware, UserError, in_background, load_hardware
from longca.lab.ranking.table import is_beside
from longca.lab.report import answers, matrix, tables, winners
from longca.lab.report.content import controls
from longca.lab.report.content.decided import decided
from longca.lab.report.content.drawn import MANY_ROWS, Paper, drawn_figures
from longca.lab.report.content.earlier import earlier_note
from longca.lab.report.content.method_notes import folder_of_documents, method_notes
from longca.lab.report.content.packing import compressed, script_json
from longca.lab.report.content.page import Files, Frame, PageData, fields_of
from longca.lab.report.content.record_layout import PICK, layout
from longca.lab.report.content.record_texts import table_texts
from longca.lab.report.decide import views
from longca.lab.report.decide.cases import cases
from longca.lab.report.decide.league import league
from longca.lab.report.decide.predicted import with_predictions
from longca.lab.report.decide.repeats import repeat_rows
from longca.lab.report.index import overviews
from longca.lab.report.look.colours import MARKERS, looks, theme
from longca.lab.report.look.masks import mask_drawings
from longca.lab.report.look.template import page_templates, static_text
from longca.lab.report.rows import merged_json, on_page, rows_json, with_anchors
from longca.lab.report.series import labelled, mask_order, rate_unit
from longca.lab.store import EXPORTED, RecordTable, UnusableFile, replace_file
from longca.lab.store.columns import COLUMNS
from longca.lab.store.environments import Environments, image_lists, own_lists, summary_of
from longca.lab.store.export import export_files
from longca.lab.store.table import frame, to_report
from longca.lab.studies import Record

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

SCRIPTS = (
    "base",
    "pick",
    "decide",
    "records",
    "figures",
    "download",
    "page",
)  # in the order of their dependencies
MAX_BYTES = 4_000_000
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
DETAILS = ("predicted", "memory", "accuracy", "noise")  # sections that open on a click
# levels of detail of the page's records, with a note on the rest; the first one below the size limit is used
LEVELS = (
    ({"samples": True, "details": True}, ""),
    ({"samples": False, "details": True}, "The records' samples"),
    ({"samples": False, "details": False}, "The records' details"),
)


class Built(NamedTuple):
    """A page that was written, and what it decided."""

    path: Path
    table: pd.DataFrame
    """of the records, with labels"""
    decision: views.Decision | None


def build(
    records: RecordTable | Iterable[Record],
    problems: Sequence[UnusableFile],
    out: Path,
    *,
    study_title: str,
    hardware: Hardware | None = None,
    sources: Sequence[Path] = (),
    environments: Environments | None = None,
    lists: Sequence[Path] | None = None,
) -> Path:
    """Write the page of `build_page`, and return its path."""
    more: dict[str, Any] = {"hardware": hardware, "sources": sources, "environments": environments}
    return build_page(records, problems, out, study_title=study_title, lists=lists, **more).path


def build_page(
    records: RecordTable | Iterable[Record],
    problems: Sequence[UnusableFile],
    out: Path,
    *,
    study_title: str,
    hardware: Hardware | None = None,
    sources: Sequence[Path] = (),
    environments: Environments | None = None,
    lists: Sequence[Path] | None = None,
) -> Built:
    """Write the page to `out`, and next to `report.html` its figures to `figures/` and missing tables of
    records.

    A page of another name has no side files, since several pages in one folder would overwrite each other's.

    Args:
        problems: unreadable files and rows, which the page names.
        study_title: the page's title; the devices follow where it names another model of GPU.
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
    values = everything.with_related(hardware)
    whole = with_anchors(with_predictions(frame(values), everything))
    table = labelled(whole)
    ordered = everything.take((~is_beside(whole)).to_numpy().nonzero()[0])
    beside = out.parent if out.name == "report.html" else None
    devices = list(map(str, whole.device))
    write = partial(_downloads, everything, values, environments, beside)
    with in_background(write, is_worth_it=len(whole) >= MANY_ROWS) as downloads:
        del whole, values
        methods = _methods(table)
        variables = {method: look.variable for method, look in looks(methods).items()}
        attention = table[~table.is_control.astype(bool)]
        unit = rate_unit(attention.tflops_per_device.max())
        decision = views.decision(table)
        fastest = [
            (kind, rankings) for kind in ("cp", "kernel") if (rankings := winners.rankings(table, kind))
        ]
        same_bits = league(table, unit)
        reasons = matrix.reasons(table)
        worst_errors = tables.worst_errors(ordered, table.cell_id.tolist())
        steady = tables.steadiness(table)
        shown = on_page(
            table,
            {
                *(cell_id for reason in reasons for cell_id in reason.cell_ids[:MOST_LINKS]),
                *(worst.cell_id for worst in worst_errors),
                *(cell.cell_id for cell in steady.drifting),
                *winners.cells(fastest),
                *(same_bits.cell_ids if same_bits else ()),
                *(views.cells(decision) if decision else ()),
                *table.cell_id[table.is_control.astype(bool)],
            },
        )
        records_shown = ordered.take(shown)
        table_shown = table.iloc[shown]
        # the first row of a cell with several records on one device
        rows = {cell_id: row for row, cell_id in reversed(list(enumerate(table_shown.cell_id)))}
        names = dict(zip(table.mask_label, table["mask"], strict=True))
        masks = mask_drawings(dict.fromkeys(names[label] for label in mask_order(attention)))
        pictures = frozenset(mask.name for mask in masks)
        figures, shared, (matrices,) = drawn_figures(
            table,
            Paper(methods, variables, rows, pictures, beside, len(shown) < len(table)),
            (partial(matrix.matrices, table),),
        )
        own_tables = {"accuracy": bool(worst_errors), "noise": len(attention) < len(table)}
        texts = table_texts(table_shown, unit)
        notes = method_notes(ordered, methods, environments)
        images = tables.images(ordered)
        marks = [mark for drawing in shared.drawings for mark in drawing.marks]
        first_picture = decided(decision, rows, unit) if decision else None
        page = PageData(
            frame=Frame(
                VERSION,
                static_text("report.css", "decide.css", "figures.css"),
                static_text(*(f"{part}.js" for part in SCRIPTS)),
                theme(),
                MARKERS,
                variables,
                notes.anchors,
                masks,
                pictures,
                shared.rules,
                folder_of_documents(out),
            ),
            study_title=tables.titled(study_title, devices, hardware),
            num_records=len(ordered),
            num_cells=len(answers.cells_of(table)),
            num_shown=len(shown),
            problems=problems,
            devices=_counted(table.device),
            dates=sorted({str(start)[:10] for start in table.started_at}),
            commits=_counted(table.git_sha),
            overviews=overviews(out),
            files=_files(out, sources, downloads()),
            alone=beside is None,
            decided=first_picture,
            earlier=earlier_note(attention),
            statuses=answers.statuses(table),
            tiles=answers.tiles(table, [kind for kind, _ in fastest], decision),
            fastest=fastest,
            league=same_bits,
            repeats=first_picture.repeats if first_picture else "",
            repeat_rows=repeat_rows(
                table, [case for kind in ("kernel", "cp") for case in cases(table, kind).standings.values()]
            ),
            names=names,
            matrices=matrices,
            reasons=reasons,
            most_links=MOST_LINKS,
            sections={
                section: title
                for section, title in SECTIONS.items()
                if section in figures or own_tables.get(section)
            },
            details=DETAILS,
            figures=figures,
            worst_errors=worst_errors,
            steadiness=steady,
            waits=controls.waits(table),
            ceilings=controls.ceilings(table, unit),
            has_product=bool(table.ceiling_tflops.notna().any()),
            rate=unit,
            machines=tables.machines(ordered, hardware),
            environments=summary_of(
                ordered, environments, image_lists(own_lists() if lists is None else lists)
            ),
            images=images,
            finding_of_images=tables.finding_of_images(images),
            software=tables.software(ordered),
            runs=tables.runs(table),
            methods=tables.methods(table),
            notes=notes,
            columns=COLUMNS,
            facts=compressed(
                script_json(
                    {
                        "count": len(shown),
                        "all": len(ordered),
                        "looks": variables,
                        "pick": PICK | {"methods": comparable(table, methods)},
                        "pictures": sorted(pictures),
                        "about": notes.tips,
                        "anchors": notes.anchors,
                        "rows": shared.rows,
                        **layout(texts, unit),
                    }
                )
            ),
            merged=compressed(merged_json(table_shown, marks, unit)),
        )
        template = page_templates().get_template("page.html.j2")
        text = b""
        for level, left_out in LEVELS:
            packed = compressed(rows_json(records_shown, table_shown, unit, **level))
            whole_page = replace(page, rows=packed, left_out=left_out)
            text = template.render(fields_of(page.frame, whole_page)).encode()
            if len(text) <= MAX_BYTES:
                break
        return Built(replace_file(out, text), table, decision)


def _methods(table: pd.DataFrame) -> tuple[str, ...]:
    """Kernels, then strategies, then controls, each sorted by name: the order of legends."""
    groups = (
        table[(table.kind == "kernel") & ~table.is_control.astype(bool)],
        table[table.kind == "cp"],
        table[table.is_control.astype(bool)],
    )
    return tuple(dict.fromkeys(method for group in groups for method in sorted(set(group.method))))


def comparable(table: pd.DataFrame, methods: Iterable[str]) -> list[str]:
    """Those of the methods that are no controls."""
    controls = set(table.method[table.is_control.astype(bool)])
    return [method for method in methods if method not in controls]


def _files(out: Path, sources: Sequence[Path], downloads: list[str]) -> Files:
    here = dict.fromkeys(path.name for path in sources if path.resolve().parent == out.resolve().parent)
    whole = len(here) == len({path.resolve() for path in sources})
    command = shlex.join(["longca", "report", *here, "--out", out.name]) if here and whole else ""
    return Files(downloads, [name for name in here if name not in downloads], command)


def _downloads(
    everything: RecordTable, values: pa.Table, environments: Environments, folder: Path | None
) -> list[str]:
    """The records' files next to the page; existing files of other records are kept and not linked."""
    if folder is None:
        return []
    exported = export_files(everything, values, environments)
    are_new = not any((folder / name).exists() for name in EXPORTED)
    offered = []
    for name, chunks in exported.items():
        if are_new:
            replace_file(folder / name, chunks)
            offered.append(name)
        elif _holds(folder / name, chunks):
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
