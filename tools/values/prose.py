"""The numbers of a text that look like results, and the parts of a page that no tool writes."""

from __future__ import annotations

import re
from bisect import bisect
from dataclasses import dataclass

_WORD = r"(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve)"
_NUMBER = r"(?<![\w.:/_=-])[+−±~-]?\d[\d,]*(?:\.\d+)?"
_SEVERAL = rf"{_NUMBER}(?:\s?(?:,|and|or|to|of|/|–|-|×|±)\s?(?:and\s)?[+−±-]?\d[\d,]*(?:\.\d+)?)*"
_UNIT = (r"(?:\s?%|\s?[×x](?![\w-])(?!\s?\d)|\s?-?fold\b|\s(?:per\s?cent|percent(?:age)?|points?|times\b|T?G?FLOP(?:/s|s)?\b|[KMGT]B/s|Gb/s|"
         r"(?:ms|µs|us|ns|s|min|h|J|W|MHz|GHz|[KMGT]i?B|kB)\b|bytes|registers|clocks|instructions|"
         r"(?:\w+\s){0,1}(?:seconds?|minutes?|hours?|days)\b))")
_COUNTED = (r"(?:\s(?!to\b|and\b|of\b|by\b|for\b|in\b|is\b|are\b|with\b)[\w`-]+){0,2}\s"
            r"(?:records|cells|calls|samples|cases|pairs|measurements|claims|kernels|commands|jobs)\b")
_FAST = r"(?:as|faster|quicker|slower|cheaper|dearer|longer|shorter|more|less|higher|lower|worse|better|ahead|behind)\b"
_PART = r"(?:half|(?:a|one|two|three)\s(?:third|quarter|fifth|sixth|tenth|twentieth)s?)"
_QUANTITY = r"(?:speed|time|rate|throughput|peak|memory|records|cells|cases|bandwidth)"
_RESULTS = tuple(re.compile(pattern) for pattern in (
    _SEVERAL + _UNIT,
    _NUMBER + _COUNTED,
    rf"\b(?:\d[\d,]*|{_WORD})\s(?:out\s)?of\s(?:the\s)?(?:\d[\d,]*|{_WORD})\b",
    r"(?<![\w.:/_=-])[+−±-]?\d+\.\d+(?![\d.]*\w)",
    rf"\b(?:twice|{_WORD}\stimes|{_PART})\s{_FAST}",
    rf"\b(?:twice|{_WORD}\stimes|{_PART}\sof)\s(?:the|its|their|that|all)\s{_QUANTITY}\b",
    r"\border of magnitude\b",
))
_VERSION = re.compile(  # a number behind one of these names a version or a paper
    r"(?:Triton|[Tt]orch|PyTorch|Python|CUDA|cuDNN|Snakemake|Apptainer|Debian|Ubuntu|Gluon|NCCL|flash-attn|xformers|yunchang|arXiv|"
    r"[Vv]ersions?|torch\s≥|Python\s≥)(?:'s|’s)?\s*\(?(?:\d[\w.]*(?:\s(?:to|and|or)\s|,\s))*$")
_CELL = re.compile(r"(?<=\|)[^|\n]*(?=\|)")
_BARE = re.compile(r"[\s*≤≥<>~=]*[+−-]?\d[\d,]*(?:\.\d+)?(?:\s?(?:/|–|,)\s?[+−-]?\d[\d,]*(?:\.\d+)?)*[\s*]*")
_HIDDEN = tuple(re.compile(pattern, re.MULTILINE | re.DOTALL) for pattern in (
    r"<!-- begin (\w+) -->.*?<!-- end \1 -->", r"^ *```.*?^ *```", r"<!--.*?-->", r"(?<=\]\()[^)\s]*(?=\))",
    r"(?<!`)`[^`]+`(?!`)", r"<https?:[^>]*>"))


@dataclass(frozen=True)
class Result:
    """A number that looks like a result."""

    start: int
    end: int
    text: str
    line: int


def hide(page: str) -> str:
    """The page with blanks for all that is no prose of its own: blocks of tools, code, comments and targets of links. Offsets stay."""
    for pattern in _HIDDEN:
        page = pattern.sub(lambda match: re.sub(r"[^\n]", "\N{MIDDLE DOT}", match[0]), page)
    return page


def results(prose: str) -> list[Result]:
    """All numbers that look like results, in order; of numbers that lie within each other the longest."""
    spans = {(match.start(), match.end()) for pattern in _RESULTS for match in pattern.finditer(prose)
             if not _VERSION.search(prose, max(match.start() - 60, 0), match.start())}
    for cell in _CELL.finditer(prose):
        if _BARE.fullmatch(cell[0]) and not _is_label(prose, cell):
            spans.add((cell.start(), cell.end()))
    lines = [match.end() for match in re.finditer("\n", prose)]
    kept: list[tuple[int, int]] = []
    for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
        if not kept or end > kept[-1][1]:
            kept.append((start, end))
    return [Result(start, end, " ".join(prose[start:end].split()), bisect(lines, start) + 1) for start, end in kept]


def _is_label(prose: str, cell: re.Match[str]) -> bool:
    """True for a cell of a table's first column: it names the row."""
    return not prose[prose.rfind("\n", 0, cell.start()) + 1:cell.start()].strip(" |")


def numbers(text: str) -> list[tuple[int, int]]:
    """The spans of all numbers in a text, words like `twelve` included."""
    words = rf"\b(?:{_WORD}|twice|half|thirds?|quarters?|fifths?|sixths?|tenths?|twentieths?)\b"
    return [match.span() for match in re.finditer(rf"\d[\d,]*(?:\.\d+)?|{words}", text)]
