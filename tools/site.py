"""The documents and the Python API as a web site: `make site` writes `site/`, which opens without a server or
a network.

    python -m tools.site [--check]    --check: build into a temporary folder and keep nothing

Links between documents, records' pages and code are relative to the repository. So the documents are gathered
under
`build/site-source` at the same places before MkDocs reads them. MkDocs and mkdocstrings are pinned by hash in
tools/site.lock and live in `.venv-site`, apart from what measures. mkdocs.yml has the navigation; every
warning, such as a dead link or a page without a place in it, is an error.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from longca.core import KINDS
from tools import setup
from tools.pages import ROOT

TOOLS = ROOT / ".venv-site"
LOCK = ROOT / "tools/site.lock"
SETTINGS = ROOT / "mkdocs.yml"
SOURCE = ROOT / "build/site-source"
SITE = ROOT / "site"
PAGES = ("*.md", "docs/**/*.md", "config/README.md")
LINK = re.compile(r'\]\(([^)\s]+)\)|(?:src|href|srcset)="([^"]+)"')
REPORTS = ("reports/*.html", "reports/*/*.html", "reports/paper/**/*.*")  # they link to each other
DOCUMENT = re.compile(r'(href="(?:\.\./)+docs/[\w/-]+)\.md(?=")')  # links of pages to documents
API = "api/index.md", "api/plug-ins.md"
FACE = "longca/__init__.py"


def gather(folder: Path) -> None:
    """Copy all pages and what they link to, each to its own place below `folder`, and write the pages of the
    API."""
    shutil.rmtree(folder, ignore_errors=True)
    pages = sorted({path for pattern in PAGES for path in ROOT.glob(pattern)})
    reports = {path for pattern in REPORTS for path in ROOT.glob(pattern)}
    for path in sorted({*pages, *reports, *(file for page in pages for file in _linked(page))}):
        target = folder / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path in reports and path.suffix == ".html":  # documents have other names on the site
            target.write_text(DOCUMENT.sub(r"\1.html", path.read_text(encoding="utf-8")), encoding="utf-8")
        else:
            shutil.copyfile(path, target)
    (folder / "api").mkdir()
    for name, content in zip(API, (face_page(), plugins_page()), strict=True):
        (folder / name).write_text(content, encoding="utf-8")


def _linked(page: Path) -> Iterator[Path]:
    """The files of the repository that a page links to."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for match in LINK.finditer(text):
        target = unquote(match[1] or match[2]).partition("#")[0]
        path = (page.parent / target).resolve()
        if target and path.is_file() and path.is_relative_to(ROOT):
            yield path


def face_page() -> str:
    """The page of all names of `import longca`."""
    names = next(
        ast.literal_eval(node.value)
        for node in ast.parse((ROOT / FACE).read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id == "__all__"
    )
    parts = [f"::: longca.{name}" for name in names]
    return "\n\n".join(["# longca", "The names that `import longca` offers.", *parts, ""])


def plugins_page() -> str:
    """The page of the contracts of plug-ins."""
    parts = [f"## {kind.name}\n\n::: {kind.contract.replace(':', '.')}" for kind in KINDS.values()]
    lead = "What a file of each folder of plug-ins must offer. The guides show examples."
    return "\n\n".join(["# Contracts of plug-ins", lead, *parts, ""])


def build(site: Path) -> None:
    """Gather the source and build the site. Exits with MkDocs' messages if there is any warning."""
    gather(SOURCE)
    command = [
        str(_python()),
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "-f",
        str(SETTINGS),
        "-d",
        str(site.resolve()),
    ]
    environ = {**os.environ, "PYTHONPATH": "", "NO_COLOR": "1"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:  # not `--quiet`, which would also count no warnings
        lines = [line for line in done.stderr.splitlines() if not line.startswith("INFO")]
        sys.exit("\n".join([*lines, f"site: MkDocs ended with {done.returncode}"]))
    print(f"site: {sum(1 for _ in site.rglob('*.html'))} pages\n{site / 'index.html'}")


def _python() -> Path:
    """The Python that has MkDocs; installs it by hash where it is not there yet."""
    if given := os.environ.get("SITE_PYTHON"):
        return Path(given)
    stamp = TOOLS / "lock"
    python = TOOLS / "bin/python"
    if not stamp.exists() or stamp.read_bytes() != LOCK.read_bytes():
        print("site: making .venv-site (about 8 MB to download)", flush=True)
        venv.EnvBuilder(with_pip=True, clear=True, symlinks=True).create(TOOLS)
        command = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", "-q", "install"]
        command += ["--require-hashes", "-r", str(LOCK)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"site: {setup.why_pip_failed(done.stdout + done.stderr)}")
        stamp.write_bytes(LOCK.read_bytes())
    return python


def main() -> None:
    if sys.argv[1:] == ["--check"]:
        with tempfile.TemporaryDirectory() as name:
            build(Path(name) / "site")
    elif sys.argv[1:]:
        sys.exit("Usage: python -m tools.site [--check]")
    else:
        build(SITE)


if __name__ == "__main__":
    main()
