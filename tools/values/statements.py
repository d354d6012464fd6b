"""The statements of docs/values.yaml, and what they make of a page."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import yaml

from tools.pages import ROOT
from tools.values.prose import Result, hide, hide_blocks, numbers, results

FILE = ROOT / "docs/values.yaml"
REASONS = {  # why a number may stand that no record holds
    "setting": "a limit, an aim, a size or a constant that code or a study sets",
    "version": "a version of other software",
    "source": "of a paper, a datasheet, a thread or a page that the sentence links to or names",
    "by hand": "measured by hand: its paragraph, or that before its table, names the day or commit and file",
    "example": "shows how an answer looks",
    "count": "of things that a reader can count on the page or in the code",
}
GPUS = {"h100": "H100", "h200": "H200"}  # name in expressions → in text
_SLOT = r"([+−-]?\d[\d,]*(?:\.\d+)?(?:\s+to\s+[+−-]?\d[\d,]*(?:\.\d+)?)?|[a-z]+)"
_DAY = re.compile(r"\b20\d\d-\d\d-\d\d\b|\bcommits? [0-9a-f]{7,10}\b")
_FILE = re.compile(
    r"(?:benchmarks|tools|tests|longca|reports|config|containers|docs|examples)(?:[/.][\w*-]+)+"
    r"|\b\w+\.py\b|\]\([^)\s]+\)"
)


class ValueProblem(ValueError):
    """A statement that cannot be used, or a page that it does not fit."""


class Slot(NamedTuple):
    """A number of a sentence that is computed."""

    code: CodeType
    spec: str
    source: str

    def text(self, names: Mapping[str, Any]) -> str:
        """The number as the page shows it. Raises ValueProblem where the expression fails."""
        try:
            return format(eval(self.code, {**names, "__builtins__": {}}), self.spec)
        except Exception as error:  # whatever an expression does, the line names it
            raise ValueProblem(f"{type(error).__name__} in '{self.source}': {error}") from error


@dataclass(frozen=True)
class Sentence:
    """A text with numbers that are computed: an f-string over `tools.values.quantities`."""

    template: str

    @cached_property
    def parts(self) -> list[str | Slot]:
        """Texts and numbers, in order. Raises ValueProblem where the template is no f-string with numbers."""
        try:
            tree = ast.parse(f'f"""{self.template}"""', mode="eval").body
        except SyntaxError as error:
            raise ValueProblem(f"'{self.template}' is no f-string: {error.msg}") from None
        parts: list[str | Slot] = []
        for node in tree.values if isinstance(tree, ast.JoinedStr) else []:
            if isinstance(node, ast.FormattedValue):
                spec = "".join(str(part.value) for part in getattr(node.format_spec, "values", ()))
                code = compile(ast.Expression(node.value), FILE.name, "eval")
                parts.append(Slot(code, spec, ast.unparse(node.value)))
            elif isinstance(node, ast.Constant):
                parts.append(str(node.value))
        if not any(isinstance(part, Slot) for part in parts):
            raise ValueProblem(f"'{self.template}' computes nothing: it needs {{…}}")
        return parts

    @property
    def slots(self) -> list[Slot]:
        return [part for part in self.parts if isinstance(part, Slot)]

    def values(self, names: Mapping[str, Any]) -> list[str]:
        """The numbers as the page shows them, in order. Raises ValueProblem where an expression fails."""
        return [slot.text(names) for slot in self.slots]

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        return re.compile("".join(_SLOT if isinstance(part, Slot) else _literal(part) for part in self.parts))

    def spans(self, page: str) -> list[tuple[int, int]]:
        """The places of the numbers in the page, outside of blocks of tools.

        Raises:
            ValueProblem: the text is not there, or several times.
        """
        matches = list(self.pattern.finditer(hide_blocks(page)))
        if len(matches) != 1:
            raise ValueProblem(f"its text occurs {len(matches)} times, and must once: '{self.template}'")
        return [matches[0].span(group) for group in range(1, self.pattern.groups + 1)]


def _literal(text: str) -> str:
    """A pattern of a text whose lines may break elsewhere."""
    return r"\s+".join(re.escape(word) for word in re.split(r"\s+", text))


@dataclass(frozen=True)
class Statements:
    """Statements about one page or file."""

    computed: tuple[Sentence, ...] = ()
    stated: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """reason → texts with numbers"""
    frozen: str = ""
    """digest of all numbers of a page that is kept as it was"""


def load(path: Path = FILE) -> dict[str, Statements]:
    """Page or file, relative to the project → its statements.

    Raises:
        ValueProblem: a reason is not known.
    """
    pages: dict[str, Statements] = {}
    for page, content in yaml.safe_load(path.read_text(encoding="utf-8")).items():
        stated = {
            reason: tuple(texts) for reason, texts in content.items() if reason not in ("computed", "frozen")
        }
        if wrong := set(stated) - set(REASONS):
            known = ", ".join(REASONS)
            raise ValueProblem(f"{page}: no reason is named {', '.join(sorted(wrong))}; there are {known}")
        sentences = tuple(map(Sentence, content.get("computed", ())))
        pages[page] = Statements(sentences, stated, content.get("frozen", ""))
    return pages


def digest(numbers: list[Result]) -> str:
    """Names the numbers of a page, whatever the words between them."""
    return hashlib.sha256("\n".join(result.text for result in numbers).encode()).hexdigest()[:16]


def renewed(page: str, statements: Statements, names: Mapping[str, Any]) -> str:
    """The page with the numbers that its records give. Raises ValueProblem as `spans` and `values` do."""
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
    numbers = results(prose)
    if statements.frozen:
        if statements.frozen != digest(numbers):
            raise ValueProblem(
                f"the numbers of a frozen page have changed: their digest is {digest(numbers)}"
            )
        return []
    covered = [span for sentence in statements.computed for span in sentence.spans(page)]
    covered += [span for reason, text in _stated(statements) for span in _spans(page, reason, text)]
    return [result for result in numbers if not _is_covered(result, prose, covered)]


def unaccounted_in_text(text: str, numbers: list[Result], statements: Statements) -> list[Result]:
    """The same of a text in code, whose numbers were `found`."""
    covered = [
        match.span() for _, words in _stated(statements) for match in re.finditer(_literal(words), text)
    ]
    return [result for result in numbers if not _is_covered(result, text, covered)]


def _stated(statements: Statements) -> Iterator[tuple[str, str]]:
    return ((reason, text) for reason, texts in statements.stated.items() for text in texts)


def _is_covered(result: Result, text: str, covered: list[tuple[int, int]]) -> bool:
    """True if each number of the result lies in one of the spans."""
    parts = numbers(text[result.start : result.end]) or [(0, result.end - result.start)]
    return all(
        any(start <= result.start + first and result.start + last <= end for start, end in covered)
        for first, last in parts
    )


def _spans(page: str, reason: str, text: str) -> list[tuple[int, int]]:
    places = list(re.finditer(_literal(text), hide_blocks(page)))
    spans = [_table(page, match.start()) if text.startswith("|") else match.span() for match in places]
    if not spans:
        raise ValueProblem(f"the page has not the text '{text}' ({reason})")
    for start, end in spans if reason == "by hand" else ():
        around = block(page, start, end)
        if not (_DAY.search(around) and _FILE.search(around)):
            raise ValueProblem(f"'{text}' is by hand: its paragraph must name the day or commit, and a file")
    return spans


def _table(page: str, start: int) -> tuple[int, int]:
    """The span of the whole table that has this place in its first line."""
    rows = re.compile(r"(?:[ \t]*\|[^\n]*\n?)+").match(page, start)
    return start, rows.end() if rows else start


def block(page: str, start: int, end: int) -> str:
    """The paragraph, list or table of a place; with a table, the paragraph before it."""
    first = page.rfind("\n\n", 0, start)
    last = page.find("\n\n", end)
    text = page[first + 1 : last if last >= 0 else len(page)]
    if text.lstrip().startswith("|"):
        text = page[page.rfind("\n\n", 0, first) + 1 : first] + text
    return text


def without_gpu(page: str, sentence: Sentence) -> str:
    """A line about a number of several GPU models, or of one not named beside it; "" if none is."""
    spans = sentence.spans(page)
    headings = re.findall(r"^#+ .*$", page[: spans[0][0]], re.MULTILINE)
    around = "\n".join([block(page, spans[0][0], spans[-1][1]), *headings[:1], *headings[-1:]])
    for slot in sentence.slots:
        gpus = [GPUS[name] for name in GPUS if re.search(rf"\b{name}\b", slot.source)]
        if len(gpus) > 1 and not slot.source.startswith("compared("):
            return f"one number is made of records of {' and '.join(gpus)}: {slot.source}"
        if missing := [gpu for gpu in gpus if gpu not in around]:
            return f"neither its paragraph nor its headings name the {missing[0]}: '{sentence.template}'"
    return ""
