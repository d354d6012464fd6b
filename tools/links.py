"""Links of all committed pages: Markdown, notebooks and HTML. `python -m tools.links` lists the addresses on
other sites with the pages that name them; `--visit` opens each, for a look now and then: no test does."""

from __future__ import annotations

import argparse
import functools
import json
import re
import subprocess
import sys
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.error import URLError
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[1]
_MARKDOWN = re.compile(r'\]\(([^)\s]+)\)|(?:src|href|srcset)="([^"]+)"|<(https?://[^>\s]+)>')
_HOST = re.compile(r"(?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\.)+[a-z]{2,}")
_OF_RECORD = re.compile(r"cell-([0-9a-f]{16})(?:-\d+)?")


def pages() -> list[Path]:
    """All pages that a reader may open."""
    markdown = [*ROOT.glob("*.md"), *ROOT.glob(".github/**/*.md"), *ROOT.glob("config/**/*.md")]
    return sorted(
        [
            *markdown,
            *ROOT.glob("docs/**/*.md"),
            *ROOT.glob("examples/**/*.ipynb"),
            *ROOT.glob("reports/**/*.html"),
        ]
    )


def links(page: Path) -> list[str]:
    """The addresses that a page links to, in its order."""
    return list(dict.fromkeys(_read(page)[0]))


def dead(page: Path) -> Iterator[str]:
    """Links of a page to files, headings and records that are not there, or that no clone has since git
    ignores them, and addresses that are malformed."""
    addresses = {address: urlsplit(address) for address in links(page)}
    files = {
        address: (page.parent / unquote(parts.path)).resolve() if parts.path else page
        for address, parts in addresses.items()
        if not (parts.scheme or parts.netloc)
    }
    left_out = _ignored(page.resolve().parent, set(files.values()))
    for address in addresses:
        parts = addresses[address]
        if parts.scheme or parts.netloc:
            reason = malformed(address)
            if reason:
                yield f"{_name(page)}: {address} {reason}"
            continue
        file = files[address]
        if file in left_out:
            yield f"{_name(page)}: {address} is ignored by git, so that no clone has it"
        elif not file.exists():
            yield f"{_name(page)}: {address} is not there"
        elif (
            parts.fragment and file.suffix in (".md", ".html") and not _answers(file, unquote(parts.fragment))
        ):
            yield f"{_name(page)}: {address} has nothing of that name"


def _ignored(folder: Path, files: set[Path]) -> set[Path]:
    """Those of the files that git ignores, whether they are there or not; none outside of a checkout."""
    root = _checkout(folder)
    inside = sorted(str(file) for file in files if root and file.is_relative_to(root))
    if not inside:
        return set()
    asked = subprocess.run(
        ["git", "-C", folder, "check-ignore", "-z", "--stdin"],
        input="\0".join(inside),
        capture_output=True,
        text=True,
        check=False,  # 1: it ignores none of them
    )
    return {Path(name) for name in asked.stdout.split("\0") if name}


@functools.cache
def _checkout(folder: Path) -> Path | None:
    try:
        told = subprocess.run(
            ["git", "-C", folder, "rev-parse", "--show-toplevel"], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:  # without git there is no checkout
        return None
    return Path(told.stdout.rstrip("\n")) if not told.returncode else None


def external() -> dict[str, list[str]]:
    """Address on another site → the pages that name it."""
    named = defaultdict(list)
    for page in pages():
        for address in links(page):
            if urlsplit(address).scheme in ("http", "https"):
                named[address].append(_name(page))
    return dict(sorted(named.items()))


def malformed(address: str) -> str:
    """The reason why an address on another site cannot be right; "" if there is none."""
    parts = urlsplit(address)
    if parts.scheme in ("data", "mailto"):
        return ""
    if parts.scheme != "https":
        return "is not https"
    if not _HOST.fullmatch(parts.netloc):
        return "has no proper host"
    if re.search(r"""[\s"'<>`{}|\\^]|[.,;:]$|&amp;""", address) or "//" in parts.path:
        return "has signs that no address has"
    return ""


def _answers(page: Path, fragment: str) -> bool:
    name = re.split(r"[?&]", fragment)[0]
    record = _OF_RECORD.fullmatch(name)
    if page.suffix == ".html" and record:  # its script makes the rows
        return record[1] in page.read_text(encoding="utf-8")
    return name in _read(page)[1]


@functools.lru_cache(maxsize=8)
def _read(page: Path) -> tuple[tuple[str, ...], frozenset[str]]:
    """(addresses, names of its parts)."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".html":
        outline = _Outline()
        outline.feed(text)
        return tuple(outline.links), frozenset(outline.ids)
    if page.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    text = re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.M | re.S)
    prose = re.sub(r"`[^`\n]*`", "", text)
    found = [unquote(next(filter(None, match.groups()))) for match in _MARKDOWN.finditer(prose)]
    return tuple(found), frozenset(_headings(text))


def _headings(text: str) -> Iterator[str]:
    """The names that GitHub gives to headings; those that come again are numbered."""
    counts: dict[str, int] = defaultdict(int)
    for heading in re.findall(r"^#+ +(.*?) *$", text, flags=re.M):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        name = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        yield f"{name}-{counts[name]}" if counts[name] else name
        counts[name] += 1
    yield from re.findall(r'<a (?:id|name)="([^"]+)"', text)


class _Outline(HTMLParser):
    """Links and ids of a page as it is written; its script makes more."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            elif value and (name == "src" or (name == "href" and tag in ("a", "area"))):
                self.links.append(value)


def _name(page: Path) -> str:
    return (page.relative_to(ROOT) if page.is_relative_to(ROOT) else page).as_posix()


def _visit(address: str) -> str:
    """The reason why an address does not open; "" if it does."""
    request = urllib.request.Request(address, headers={"User-Agent": "Mozilla/5.0"})
    try:
        with urllib.request.urlopen(request, timeout=20):
            return ""
    except (URLError, TimeoutError) as error:
        return str(error)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--visit", action="store_true", help="open each address, and list those that do not open"
    )
    options = parser.parse_args()
    failed = 0
    for address, named_by in external().items():
        reason = _visit(address) if options.visit else ""
        failed += bool(reason)
        if reason or not options.visit:
            print(f"{address}  {reason or ', '.join(named_by)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
