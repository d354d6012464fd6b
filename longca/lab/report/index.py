"""An index page of a folder, and the links of its pages to it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import unescape
from pathlib import Path

from longca.core import VERSION
from longca.lab.report.look.colours import theme
from longca.lab.report.look.template import page_templates, static_text
from longca.lab.store import replace_file

_TITLE = re.compile(r"<title>([^<]*?)(?: · longca)?</title>")
_ABOUT = re.compile(r'<meta name="description" content="([^"]*)">')
_MADE = re.compile(r'<meta name="generator" content="longca ')
STUDY = "paper/index.html"  # of the pages in a folder
HEAD = 20_000  # characters that contain a page's description


@dataclass(frozen=True)
class Page:
    """One page made by this project."""

    link: str
    title: str
    about: str


def write_index(folder: Path) -> Path | None:
    """Write `index.html` for the pages of a folder and of its direct sub-folders, that of the whole study
    first.
    Returns None without pages.

    An existing file that this project did not make is kept.
    """
    target = folder / "index.html"
    if target.exists() and not _MADE.search(_head(target)):
        return None
    found = {*folder.glob("*.html"), *folder.glob("*/*.html")} - {target}
    paths = sorted(found, key=lambda path: (path != folder / STUDY, path))
    pages = [page for path in paths if (page := _page(path, folder))]
    if not pages:
        return None
    template = page_templates().get_template("index.html.j2")
    return replace_file(
        target,
        template.render(
            pages=pages, theme=theme(), css=static_text("report.css"), generator=VERSION
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
