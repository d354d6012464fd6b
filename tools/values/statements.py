"""The statements of docs/values.yaml, and what they make of a page."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from tools.pages import ROOT
from tools.values.prose import Result, hide, numbers, results

FILE = ROOT / "docs/values.yaml"
REASONS = {  # why a number may stand that no record holds
    "setting": "a limit, an aim, a size or a constant that code or a study sets",
    "version": "a version of other software",
    "source": "of a paper, a datasheet, a thread or a page that the sentence links to or names",
    "by hand": "measured by hand: the paragraph, its table or the sentence before it names the day or commit and the file",
    "example": "shows how an answer looks",
    "count": "of things that a reader can count on the page or in the code",
}
GPUS = {"h100": "H100", "h200": "H200"}  # name in expressions → in text
_DAY = re.compile(r"\b20\d\d-\d\d-\d\d\b|\bcommits? [0-9a-f]{7,10}\b")
_FILE = re.compile(r"(?:benchmarks|tools|tests|longca|reports|config|containers|docs|examples)(?:[/.][\w*-]+)+|\]\([^)\s]+\)")


class ValueProblem(ValueError):
    """A statement that cannot be used, or a page that it does not fit."""


@dataclass(frozen=True)
class Sentence:
    """A text with numbers that are computed: an f-string over `quantities`."""

    template: str

    @cached_property
    def parts(self) -> list[str | tuple[Any, str, str]]:
        """Literal texts, and (code, format, source) of each number."""
        try:
            tree = ast.parse(f'f"""{self.template}"""', mode="eval").body
        except SyntaxError as error:
            raise ValueProblem(f"'{self.template}' is no f-string: {error.msg}") from None
        parts: list[str | tuple[Any, str, str]] = []
        for node in tree.values if isinstance(tree, ast.JoinedStr) else [tree]:
            if isinstance(node, ast.Constant):
                parts.append(str(node.value))
            elif isinstance(node, ast.FormattedValue):
                spec = "".join(str(part.value) for part in getattr(node.format_spec, "values", ()) if isinstance(part, ast.Constant))
                parts.append((compile(ast.Expression(node.value), "docs/values.yaml", "eval"), spec, ast.unparse(node.value)))
        if all(isinstance(part, str) for part in parts):
            raise ValueProblem(f"'{self.template}' computes nothing: it needs {{…}}")
        return parts

    @property
    def gpus(self) -> list[set[str]]:
        """For each number the GPUs whose records it is made of."""
        return [{name for name in GPUS if re.search(rf"\b{name}\b", part[2])} for part in self.parts if not isinstance(part, str)]

    def values(self, names: Mapping[str, Any]) -> list[str]:
        """The numbers as the text shows them, in order.

        Raises:
            ValueProblem: an expression fails.
        """
        shown = []
        for part in self.parts:
            if not isinstance(part, str):
                code, spec, source = part
                try:
                    shown.append(format(eval(code, {**names, "__builtins__": {}}), spec))
                except Exception as error:  # whatever an expression does, the line names it
                    raise ValueProblem(f"{type(error).__name__} in '{source}': {error}") from error
        return shown

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        number = r"([+−-]?\d[\d,]*(?:\.\d+)?(?:\s+to\s+[+−-]?\d[\d,]*(?:\.\d+)?)?|[a-z_-]+)"
        return re.compile("".join(_literal(part) if isinstance(part, str) else number for part in self.parts))

    def spans(self, page: str) -> list[tuple[int, int]]:
        """Where the numbers stand in the page.

        Raises:
            ValueProblem: the text is not there, or several times.
        """
        matches = list(self.pattern.finditer(page))
        if len(matches) != 1:
            raise ValueProblem(f"the page has the text {'' if not matches else f'{len(matches)} times'}{'not' if not matches else ''}: "
                               f"'{self.template}'")
        return [matches[0].span(group) for group in range(1, self.pattern.groups + 1)]


def _literal(text: str) -> str:
    """A pattern of a text whose lines may break elsewhere."""
    return r"\s+".join(re.escape(word) for word in re.split(r"\s+", text))


@dataclass(frozen=True)
class Statements:
    """What docs/values.yaml says about one page."""

    computed: tuple[Sentence, ...] = ()
    stated: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """reason → texts with numbers"""
    frozen: str = ""
    """digest of all numbers of a page that is kept as it was"""


def load(path: Path = FILE) -> dict[str, Statements]:
    """Page, relative to the project → its statements.

    Raises:
        ValueProblem: a key or reason is not known.
    """
    pages: dict[str, Statements] = {}
    for page, content in (yaml.safe_load(path.read_text(encoding="utf-8")) or {}).items():
        stated = {reason: tuple(texts) for reason, texts in content.items() if reason not in ("computed", "frozen")}
        if wrong := set(stated) - set(REASONS):
            raise ValueProblem(f"{page}: no reason is named {', '.join(sorted(wrong))}; there are {', '.join(REASONS)}")
        pages[page] = Statements(tuple(map(Sentence, content.get("computed", ()))), stated, content.get("frozen", ""))
    return pages


def digest(found: list[Result]) -> str:
    """Names the numbers of a page, whatever the words between them."""
    return hashlib.sha256("\n".join(result.text for result in found).encode()).hexdigest()[:16]


def renewed(page: str, statements: Statements, names: Mapping[str, Any]) -> str:
    """The page with the numbers that its records give."""
    changes: dict[tuple[int, int], str] = {}
    for sentence in statements.computed:
        changes |= dict(zip(sentence.spans(page), sentence.values(names), strict=True))
    for (start, end), value in sorted(changes.items(), reverse=True):
        page = page[:start] + value + page[end:]
    return page


def unaccounted(page: str, statements: Statements) -> list[Result]:
    """The numbers of a page that look like results and for which nothing accounts.

    Raises:
        ValueProblem: a text of the statements is not there, or lacks what its reason asks for.
    """
    prose = hide(page)
    found = results(prose)
    if statements.frozen:
        if statements.frozen != digest(found):
            raise ValueProblem(f"the numbers of a frozen page have changed: their digest is {digest(found)}")
        return []
    covered = [span for sentence in statements.computed for span in sentence.spans(page)]
    for reason, texts in statements.stated.items():
        for text in texts:
            covered += _stated_spans(page, reason, text)
    return [result for result in found if not all(
        any(start <= result.start + first and result.start + last <= end for start, end in covered)
        for first, last in numbers(prose[result.start:result.end]) or [(0, result.end - result.start)])]


def _stated_spans(page: str, reason: str, text: str) -> list[tuple[int, int]]:
    spans = [_table(page, match.start()) if text.startswith("|") else match.span() for match in re.finditer(_literal(text), page)]
    if not spans:
        raise ValueProblem(f"the page has not the text '{text}' ({reason})")
    if reason == "by hand":
        for start, end in spans:
            around = block(page, start, end)
            if not (_DAY.search(around) and _FILE.search(around)):
                raise ValueProblem(f"'{text}' is said to be measured by hand: its paragraph must name the day or commit, and a file")
    return spans


def _table(page: str, start: int) -> tuple[int, int]:
    """The span of the whole table that has this place in its first line."""
    rest = re.compile(r"(?:[ \t]*\|[^\n]*\n?)+").match(page, start)
    return start, rest.end() if rest else start


def block(page: str, start: int, end: int) -> str:
    """The paragraph, list entry or table of a place; with a table, the paragraph before it."""
    first = page.rfind("\n\n", 0, start)
    last = page.find("\n\n", end)
    text = page[first + 1:last if last >= 0 else len(page)]
    if text.lstrip().startswith("|"):
        before = page.rfind("\n\n", 0, first)
        text = page[before + 1:first] + text
    return text


def without_gpu(page: str, sentence: Sentence) -> str:
    """What is wrong with how a sentence names its GPU; "" if nothing is."""
    start, end = sentence.spans(page)[0][0], sentence.spans(page)[-1][1]
    headings = [match for match in re.finditer(r"^#+ .*$", page[:start], re.MULTILINE)]
    around = block(page, start, end) + "\n".join(match[0] for match in headings[:1] + headings[-1:])
    for gpus, (_, _, source) in zip(sentence.gpus, (part for part in sentence.parts if not isinstance(part, str)), strict=True):
        if len(gpus) > 1 and not source.startswith("compared("):
            return f"one number is made of records of {' and '.join(sorted(GPUS[gpu] for gpu in gpus))}: {source}"
        if missing := [GPUS[gpu] for gpu in gpus if GPUS[gpu] not in around]:
            return f"neither its paragraph nor its headings name the {missing[0]}: '{sentence.template}'"
    return ""
