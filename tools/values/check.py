"""The pages of the project, and a line for each of their numbers that is wrong."""

from __future__ import annotations

from collections.abc import Mapping

from tools.pages import ROOT
from tools.values import sources
from tools.values.quantities import names
from tools.values.statements import (
    REASONS,
    Statements,
    ValueProblem,
    renewed,
    unaccounted,
    unaccounted_in_text,
    without_gpu,
)

REMEDY = (
    "Nothing accounts for these numbers, which look like results. Let docs/values.yaml compute them "
    "(computed), or delete them and link to the page that has them, or say in docs/values.yaml why they may "
    "stand: " + "; ".join(f"{reason}: {meaning}" for reason, meaning in REASONS.items())
)


def pages() -> list[str]:
    """README and all documents, relative to the project."""
    documents = sorted((ROOT / "docs").rglob("*.md"))
    return [path.relative_to(ROOT).as_posix() for path in (ROOT / "README.md", *documents)]


def of_pages(statements: Mapping[str, Statements]) -> list[str]:
    """Lines about README and documents: numbers that are wrong or unaccounted for, and unfit statements."""
    gone = [page for page in statements if not (ROOT / page).exists()]
    lines = [f"{page}: docs/values.yaml names it, and it is not there" for page in gone]
    for page in pages():
        lines += of_page(page, (ROOT / page).read_text(encoding="utf-8"), statements.get(page, Statements()))
    return lines


def of_page(name: str, text: str, statements: Statements) -> list[str]:
    """The same of one page."""
    try:
        lines = [f"{name}:{result.line}: '{result.text}'" for result in unaccounted(text, statements)]
        lines += [
            f"{name}: {line}" for sentence in statements.computed if (line := without_gpu(text, sentence))
        ]
        if renewed(text, statements, names()) != text:
            lines.append(f"{name}: numbers differ from those of the records: run `make docs`")
    except ValueProblem as error:
        return [f"{name}: {error}"]
    return lines


def of_code(statements: Mapping[str, Statements]) -> list[str]:
    """Lines about docstrings, sentences of pages in code, and templates: numbers unaccounted for."""
    lines = []
    for path in sources.paths():
        name = path.relative_to(ROOT).as_posix()
        for line, text, result in sources.results_of(path):
            if unaccounted_in_text(text, [result], statements.get(name, Statements())):
                lines.append(f"{name}:{line}: '{result.text}'")
    return lines
