"""An index page of a folder: the study, then a table of each GPU's studies, and the links of pages to it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING

from longca.core import VERSION
from longca.lab.report.content.earlier import COLUMNS as EARLIER
from longca.lab.report.content.earlier import earlier_note
from longca.lab.report.content.method_notes import folder_of_documents
from longca.lab.report.look.colours import theme
from longca.lab.report.look.template import page_templates, static_text
from longca.lab.store import replace_file
from longca.lab.store.load import FIRST, load_columns
from longca.lab.store.text import short_device
from longca.lab.studies import load_study
from longca.lab.studies.checkout import studies_folder

if TYPE_CHECKING:
    import pandas as pd

_TITLE = re.compile(r"<title>([^<]*?)(?: · longca)?</title>")
_ABOUT = re.compile(r'<meta name="description" content="([^"]*)">')
_MADE = re.compile(r'<meta name="generator" content="longca ')
STUDY = "paper/index.html"  # of the pages in a folder
HEAD = 20_000  # characters that contain a page's description
COLUMNS = tuple(dict.fromkeys(("cell_id", "device", "started_at", "status", "is_control", *EARLIER)))
NAMES = {"report.html": "records.parquet"}  # a page → the file of its records, if that has another name


@dataclass(frozen=True)
class Page:
    """One page made by this project."""

    link: str
    title: str
    about: str


@dataclass(frozen=True)
class IndexRow:
    """The records of one study on one model of device, and their page."""

    device: str
    """short name; "" if it is not known"""
    study: str
    """its title, or its name"""
    page: Page | None
    records: str = ""
    """the address of the file; "" without one"""
    num_cells: int = 0
    num_timed: int = 0
    first: str = ""
    last: str = ""
    """days"""
    earlier: str = ""
    """what holds for records of earlier kernels; "" if there are none"""


@dataclass(frozen=True)
class DeviceRows:
    """All rows of one model of device."""

    device: str
    rows: tuple[IndexRow, ...]
    num_cells: int


def write_index(folder: Path) -> Path | None:
    """Write `index.html` for the pages and records of a folder and of its direct sub-folders: that of the
    whole study first, then a table, by GPU. Returns None without pages and records.

    An existing file that this project did not make is kept.
    """
    target = folder / "index.html"
    if target.exists() and not _MADE.search(_head(target)):
        return None
    study = _page(folder / STUDY, folder) if (folder / STUDY).is_file() else None
    rows, problems = _rows(folder)
    if study is None and not rows:
        return None
    template = page_templates().get_template("index.html.j2")
    return replace_file(
        target,
        template.render(
            study=study,
            devices=_by_device(rows),
            problems=problems,
            documents=folder_of_documents(target),
            theme=theme(),
            css=static_text("report.css"),
            generator=VERSION,
        ).encode(),
    )


def overviews(page: Path) -> list[Page]:
    """The existing overview pages in the parent folder of a page: the index, and the page of the whole
    study."""
    folder = page.resolve().parent.parent
    places = (("index.html", "All reports"), (STUDY, "The whole study"))
    return [
        Page(f"../{place}", title, "")
        for place, title in places
        if (path := folder / place).is_file() and path != page.resolve() and _MADE.search(_head(path))
    ]


def _rows(folder: Path) -> tuple[list[IndexRow], list[str]]:
    """The rows of all pages and files of records, and the files that could not be read."""
    left_out = {folder / "index.html", folder / STUDY}
    pages = {
        path: page
        for path in sorted({*folder.glob("*.html"), *folder.glob("*/*.html")} - left_out)
        if (page := _page(path, folder))
    }
    files = {*folder.glob("*.parquet"), *folder.glob("*/*.parquet")}
    with_pages = {path.with_name(NAMES.get(path.name, f"{path.stem}.parquet")): path for path in pages}
    rows: list[IndexRow] = []
    problems: list[str] = []
    for path in sorted({*files, *with_pages}, key=_place):
        page = pages.get(with_pages[path]) if path in with_pages else None
        name = _study_title(path.parent.name if path.name == "records.parquet" else path.stem)
        table, unread = load_columns([path], COLUMNS) if path in files else (None, [])
        problems += [str(problem) for problem in unread]
        address = path.relative_to(folder).as_posix() if path in files else ""
        if table is None or not len(table):
            rows += [IndexRow("", name, page, address)] if page else []
            continue
        rows += [_row(device, name, page, address, records) for device, records in _records_by_device(table)]
    return rows, problems


def _study_title(name: str) -> str:
    """The title of a study of this project; its name for another one."""
    return load_study(name).title or name if (studies_folder() / f"{name}.yaml").is_file() else name


def _row(device: str, name: str, page: Page | None, address: str, records: pd.DataFrame) -> IndexRow:
    days = records.started_at.str[:10]
    cells = records.cell_id.nunique()
    timed = records.cell_id[records.status == "ok"].nunique()
    note = earlier_note(records[~records.is_control.astype(bool)])
    return IndexRow(short_device(device), name, page, address, cells, timed, days.min(), days.max(), note)


def _records_by_device(table: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """The records of each model. Those of cells that no process measured belong to the only model of a
    file."""
    names = sorted({str(device) for device in table.device} - {""})
    if len(names) < 2:
        return [(names[0] if names else "", table)]
    return [(name, table.loc[table.device == name]) for name in names]


def _by_device(rows: Sequence[IndexRow]) -> list[DeviceRows]:
    """Groups of rows, in the order of their first rows; rows without a device last."""
    names = sorted(dict.fromkeys(row.device for row in rows), key=lambda device: not device)
    groups: Iterable[tuple[str, tuple[IndexRow, ...]]] = (
        (name, tuple(row for row in rows if row.device == name)) for name in names
    )
    return [DeviceRows(name, members, sum(row.num_cells for row in members)) for name, members in groups]


def _place(path: Path) -> tuple[bool, str, str]:
    """Sort key of a file: this project's own GPUs first."""
    return path.parent.name not in FIRST, path.parent.name, path.name


def _page(path: Path, folder: Path) -> Page | None:
    head = _head(path)
    if not _MADE.search(head):
        return None
    title = _TITLE.search(head)
    about = _ABOUT.search(head)
    return Page(
        path.relative_to(folder).as_posix(),
        unescape(title[1]) if title else path.stem,
        unescape(about[1]) if about else "",
    )


def _head(path: Path) -> str:
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(HEAD)
