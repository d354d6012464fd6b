"""The pages of the project, and what is wrong with their numbers."""

from __future__ import annotations

from collections.abc import Mapping

from tools.pages import ROOT
from tools.values.quantities import names
from tools.values.statements import REASONS, Statements, ValueProblem, renewed, unaccounted, without_gpu

REMEDY = ("compute it (`computed:`), delete it and link to the page that has it, or say why it may stand "
          f"({', '.join(f'`{reason}:`' for reason in REASONS)}), in docs/values.yaml")


def pages() -> list[str]:
    """README and all documents, relative to the project."""
    return [path.relative_to(ROOT).as_posix() for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))]


def problems(statements: Mapping[str, Statements]) -> list[str]:
    """A line for each number that is wrong or for which nothing accounts, and for each statement that fits no page."""
    found = [f"{page}: docs/values.yaml names it, and it is not there" for page in statements if page not in pages()]
    for page in pages():
        found += problems_of(page, (ROOT / page).read_text(encoding="utf-8"), statements.get(page, Statements()))
    return found


def problems_of(name: str, text: str, statements: Statements) -> list[str]:
    """The same of one page."""
    try:
        found = [f"{name}:{result.line}: '{result.text}' looks like a result, and nothing accounts for it: {REMEDY}"
                 for result in unaccounted(text, statements)]
        found += [f"{name}: {words}" for sentence in statements.computed if (words := without_gpu(text, sentence))]
        if renewed(text, statements, names()) != text:
            found += [f"{name}: '{sentence.template}' is {', '.join(sentence.values(names()))}: run `make docs`"
                      for sentence in statements.computed
                      if [text[start:end] for start, end in sentence.spans(text)] != sentence.values(names())]
    except ValueProblem as error:
        return [f"{name}: {error}"]
    return found
