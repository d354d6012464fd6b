"""The numbers of a text that look like results, and the parts of a page that no tool writes."""

from __future__ import annotations

import re
from bisect import bisect
from dataclasses import dataclass

_WORD = r"(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve)"
_DIGITS = r"\d[\d,]*(?:\.\d+)?"
_NUMBER = rf"(?<![\w.:/_=-])[+−±~-]?{_DIGITS}"
_SEVERAL = rf"{_NUMBER}(?:\s?(?:,|and|or|to|of|/|–|-|×|±)\s?(?:and\s)?[+−±-]?{_DIGITS})*"
_UNIT = (
    r"(?:\s?%|\s?[×x](?![\w-])(?!\s?\d)|\s?-?fold\b|\s(?:per\s?cent|percent(?:age)?|points?|times)\b"
    r"|\s?(?:ms|µs|us|ns|MHz|GHz|[KMGTP]i?B(?:/s)?|kB|Gb/s|[PTG]FLOP(?:/s|S|s)?)(?!\w)"
    r"|\s(?:s|min|h|J|W|bytes|registers|clocks|instructions|\w+flops|\w+bytes)\b"
    r"|\s(?:\w+\s)?(?:(?:milli|micro|nano)?seconds?|minutes?|hours?|days)\b)"
)
_COUNTED = (
    r"(?:\s(?!(?:to|and|of|by|for|in|is|are|with)\b)[\w`-]+){0,2}\s"
    r"(?:records|cells|calls|samples|cases|pairs|measurements|claims|kernels|commands|jobs)\b"
)
_COMPARED = (
    r"(?:as|faster|quicker|slower|cheaper|dearer|longer|shorter|more|less|higher|lower|worse|better"
    r"|ahead|behind)\b"
)
_PART = r"(?:half|(?:a|one|two|three)\s(?:third|quarter|fifth|sixth|tenth|twentieth)s?)"
_QUANTITY = r"(?:speed|time|rate|throughput|peak|memory|records|cells|cases|bandwidth)"
_WORDS_OF_RESULTS = (
    rf"\b(?:twice|{_WORD}\stimes|{_PART})\s{_COMPARED}",
    rf"\b(?:twice|{_WORD}\stimes|{_PART}(?:\sof)?)\s(?:the|its|their|that|all)\s{_QUANTITY}\b",
    rf"\b(?:factor|speed-?\s?up|gain|loss)\sof\s{_DIGITS}",
    r"\border of magnitude\b",
)
_IN_PAGES = tuple(
    re.compile(pattern)
    for pattern in (
        _SEVERAL + _UNIT,
        _NUMBER + _COUNTED,
        rf"\b(?:\d[\d,]*|{_WORD})\s(?:out\s)?of\s(?:the\s)?(?:\d[\d,]*|{_WORD})\b",
        r"(?<![\w.:/_=-])[+−-]?\d+\.\d+(?![\d.]*\w)",
        rf"\b(?:leads?|wins?|loses|fastest|quickest|ahead)\b[^.|]{{0,60}}?\s(?:\d[\d,]*|{_WORD})\s"
        r"(?:masks|cases|settings)\b",
        r"\b[a-z-]+\sper\s?cent\b",
        *_WORDS_OF_RESULTS,
    )
)
_IN_CODE = tuple(  # what measuring found, and not limits, formats and examples, which code is full of
    re.compile(pattern)
    for pattern in (
        rf"{_SEVERAL}\s?(?:%|×|x|times|per\s?cent|-?fold)\s(?:\w+\s){{0,2}}?{_COMPARED}",
        rf"\b{_COMPARED}\s(?:\w+\s){{0,2}}?by\s(?:\w+\s){{0,2}}?{_SEVERAL}",
        rf"{_SEVERAL}\s?(?:%|×|times|per\s?cent)\sof\s(?:\w+\s)?(?:{_QUANTITY}|fastest|quickest|others?)\b",
        rf"{_SEVERAL}\s?[PTG]FLOP/s",
        rf"\b(?:takes?|took|costs?|gains?|loses?|lost|saves?)\s(?:\w+\s){{0,3}}?{_SEVERAL}{_UNIT}",
        r"\b\d[\d,]*\s(?:out\s)?of\s(?:the\s)?\d[\d,]*\s[a-z]",
        *_WORDS_OF_RESULTS,
    )
)
_VERSION = re.compile(  # a number behind one of these names a version or a paper
    r"(?:Triton|[Tt]orch|PyTorch|Python|CUDA|cuDNN|Snakemake|Apptainer|Debian|Ubuntu|Gluon|NCCL|flash-attn"
    r"|xformers|yunchang|arXiv|[Vv]ersions?|torch\s≥|Python\s≥)"
    r"(?:'s|’s)?\s*\(?(?:\d[\w.]*(?:\s(?:to|and|or)\s|,\s))*$"
)
_CELL = re.compile(r"(?<=\|)[^|\n]*(?=\|)")
_BARE = re.compile(rf"[\s*≤≥<>~=]*[+−-]?{_DIGITS}(?:\s?[/–,]\s?[+−-]?{_DIGITS})*[\s*]*")
_BLOCK = re.compile(r"<!-- begin (\w+) -->.*?<!-- end \1 -->", re.DOTALL)
_HIDDEN = tuple(
    re.compile(pattern, re.MULTILINE | re.DOTALL)
    for pattern in (
        r"^ *```.*?^ *```",
        r"<!--.*?-->",
        r"(?<=\]\()[^)\s]*(?=\))",
        r"(?<!`)`[^`]+`(?!`)",
        r"<https?:[^>]*>",
    )
)


@dataclass(frozen=True)
class Result:
    """A number that looks like a result."""

    start: int
    end: int
    text: str
    line: int


def hide_blocks(page: str) -> str:
    """The page with dots for the blocks that tools write. Offsets stay."""
    return _BLOCK.sub(_dots, page)


def hide(page: str) -> str:
    """The page with dots for all that is no prose: blocks of tools, code, comments, links. Offsets stay."""
    page = hide_blocks(page)
    for pattern in _HIDDEN:
        page = pattern.sub(_dots, page)
    return page


def _dots(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", "\N{MIDDLE DOT}", match[0])


def results(prose: str) -> list[Result]:
    """All numbers of a page that look like results, in order; of nested ones the longest."""
    cells = {
        cell.span()
        for cell in _CELL.finditer(prose)
        if _BARE.fullmatch(cell[0]) and not _is_label(prose, cell)
    }
    return _longest(prose, cells | _found(prose, _IN_PAGES))


def results_in_code(text: str) -> list[Result]:
    """The same of a text in code, where only numbers with words of comparing or taking count."""
    return _longest(text, _found(text, _IN_CODE))


def _found(prose: str, patterns: tuple[re.Pattern[str], ...]) -> set[tuple[int, int]]:
    return {
        match.span()
        for pattern in patterns
        for match in pattern.finditer(prose)
        if not _VERSION.search(prose, max(match.start() - 60, 0), match.start())
    }


def _longest(prose: str, spans: set[tuple[int, int]]) -> list[Result]:
    lines = [match.end() for match in re.finditer("\n", prose)]
    kept: list[tuple[int, int]] = []
    for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
        if not kept or end > kept[-1][1]:
            kept.append((start, end))
    return [
        Result(start, end, " ".join(prose[start:end].split()), bisect(lines, start) + 1)
        for start, end in kept
    ]


def _is_label(prose: str, cell: re.Match[str]) -> bool:
    """True for a cell of a table's first column: it names the row."""
    return not prose[prose.rfind("\n", 0, cell.start()) + 1 : cell.start()].strip(" |")


def numbers(text: str) -> list[tuple[int, int]]:
    """The spans of all numbers in a text, words like `twelve` included."""
    parts = "thirds?|quarters?|fifths?|sixths?|tenths?|twentieths?"
    return [match.span() for match in re.finditer(rf"{_DIGITS}|\b(?:{_WORD}|twice|half|{parts})\b", text)]
