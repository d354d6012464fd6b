"""Entries for docs/values.yaml that account for numbers which nothing accounts for; what is left to write is
the reason."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from tools.pages import ROOT
from tools.values.check import pages
from tools.values.statements import Statements, ValueProblem, unaccounted

_BEFORE = re.compile(r"(?:\S+\s+){0,4}\S*\Z")  # words on each side of a number
_AFTER = re.compile(r"\S*(?:\s+\S+){0,4}")


def suggestions(statements: Mapping[str, Statements]) -> str:
    """The entries, of pages whose statements fit. A table has one, the beginning of its first line."""
    lines: list[str] = []
    for page in pages():
        text = (ROOT / page).read_text(encoding="utf-8")
        try:
            places = [
                (result.start, result.end) for result in unaccounted(text, statements.get(page, Statements()))
            ]
        except ValueProblem:
            continue  # `check.of_pages` tells
        entries = dict.fromkeys(json.dumps(_around(text, *span), ensure_ascii=False) for span in places)
        lines += [f"{page}:", "  REASON:", *(f"    - {entry}" for entry in entries)] if entries else []
    return "\n".join(lines)


def _around(text: str, start: int, end: int) -> str:
    line = text.rfind("\n", 0, start) + 1
    if text[line:].startswith("|"):
        while (above := text.rfind("\n", 0, line - 1) + 1) < line and text[above:].startswith("|"):
            line = above
        return text[line : text.find("\n", line)]
    paragraph = text.rfind("\n\n", 0, start) + 1
    stop = text.find("\n\n", end)
    before = _BEFORE.search(text[paragraph:start])
    after = _AFTER.match(text[end : stop if stop >= 0 else len(text)])
    return " ".join(f"{before[0] if before else ''}{text[start:end]}{after[0] if after else ''}".split())
