"""Texts of the code that readers see: docstrings, sentences of pages, and page templates."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.pages import ROOT
from tools.values.prose import Result, hide, results_in_code

SENTENCES = ("longca/lab/report/", "longca/lab/paper/")  # whose strings are texts of pages
_QUOTED = re.compile(r'"[^"\n]*(?:\n[^"\n]*){0,3}"')  # an answer that is shown
_MARKUP = re.compile(r"\{[{%#].*?[%}#]\}|<style.*?</style>|<script.*?</script>|<[^>]*>", re.DOTALL)
_WORDS = re.compile(r"(?:[A-Za-z]{2,}[ ,.:;]+){3}")


def paths() -> list[Path]:
    """The files of the package that have such texts."""
    return sorted(path for ending in ("*.py", "*.j2") for path in (ROOT / "longca").rglob(ending))


def texts(path: Path) -> list[tuple[int, str]]:
    """(line, text) of a template without its markup, or of docstrings and, in pages, of strings.

    Quotations in docstrings are left out, and docstrings that begin with a number: they show answers.
    """
    content = path.read_text(encoding="utf-8")
    if path.suffix == ".j2":
        return [(1, _MARKUP.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), content))]
    return list(_in_python(content, path.relative_to(ROOT).as_posix().startswith(SENTENCES)))


def results_of(path: Path) -> list[tuple[int, str, Result]]:
    """(line, text, number) of all numbers of a file that look like results."""
    return [
        (line + result.line - 1, text, result)
        for line, text in texts(path)
        for result in results_in_code(hide(text))
    ]


def _in_python(content: str, strings: bool) -> Iterator[tuple[int, str]]:
    tree = ast.parse(content)
    documented: set[int] = set()
    for node in _definitions(tree):
        first = node.body[0] if node.body else None
        text = first.value if isinstance(first, ast.Expr) else None
        if isinstance(text, ast.Constant) and isinstance(text.value, str):
            documented.add(id(text))
            if not text.value[:1].isdigit():
                yield text.lineno, _QUOTED.sub(_blank, text.value)
    for node in ast.walk(tree) if strings else ():
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in documented
            and (_WORDS.search(node.value))
        ):
            yield node.lineno, node.value


def _definitions(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Any]:
    """The module, and the classes and functions that stand in it or in each other."""
    yield node
    for inner in node.body:
        if isinstance(inner, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _definitions(inner)


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])
