"""Numbers for sentences: their ends, and those of blocks that tools have written into pages."""

from __future__ import annotations

import re
import statistics
from dataclasses import dataclass
from functools import cache

from tools.pages import ROOT

_FIGURE = re.compile(r"[+−-]?\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True)
class Span:
    """Two ends, which a format shows as `0.97 to 1.02`, or as one number where they look alike."""

    least: float
    most: float

    def __format__(self, spec: str) -> str:
        least = format(self.least, spec)
        most = format(self.most, spec)
        return least if least == most else f"{least} to {most}"


class Figures(tuple[float, ...]):
    """Numbers of which sentences give the ends and the middle."""

    span = property(lambda self: Span(min(self), max(self)))
    loss = property(lambda self: Figures(100 * (1 - number) for number in self))
    """of ratios: percent below 1"""
    num = property(len)

    least = property(min)
    most = property(max)
    median = property(statistics.median)
    geometric = property(statistics.geometric_mean)

    def below(self, limit: float) -> int:
        """Count of the numbers that are less than `limit`."""
        return sum(number < limit for number in self)


@dataclass(frozen=True)
class Block:
    """A block that a tool has written into a page: its caption, and its table as texts."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def figures(self, column: str | int, part: int | None = 0, **where: str | tuple[str, ...]) -> Figures:
        """The numbers of a column, of the rows whose columns hold these words.

        Args:
            column: its heading, or its place from 0 where headings repeat.
            part: which number of a cell with several, as of `forward / backward`; None: all of them.
            where: column → word or words, `_` for blanks and `first` for the first column.

        Raises:
            ValueError: no cell of that kind has a number.
        """
        at = column if isinstance(column, int) else self.columns.index(column)
        actual = []
        for row in self.rows:
            if len(row) != len(self.columns):  # of a second table
                continue
            cells = dict(zip((name.replace(" ", "_") or "_" for name in self.columns), row, strict=True)) | {
                "first": row[0]
            }
            if all(
                cells[name] in ((words,) if isinstance(words, str) else words)
                for name, words in where.items()
            ):
                numbers = _FIGURE.findall(row[at])
                actual += map(_number, numbers if part is None else numbers[part : part + 1])
        if not actual:
            raise ValueError(f"no cell of column '{column}' has a number where {where}")
        return Figures(actual)

    def figure(self, column: str | int, part: int = 0, **where: str | tuple[str, ...]) -> float:
        """The only number of that kind."""
        (number,) = self.figures(column, part, **where)
        return number

    @property
    def memory(self) -> Figures:
        """The peak memory of a rank in training with each strategy, over that of one rank."""
        (row,) = [row for row in self.rows if row[0].startswith("peak memory of a rank")]
        alone, *ranks = (_number(_FIGURE.findall(cell)[0]) for cell in row[1:])
        return Figures(rank / alone for rank in ranks)

    def having(self, column: str, word: str) -> int:
        """Count of the rows with this word in a column."""
        return sum(row[self.columns.index(column)] == word for row in self.rows)

    def said(self, pattern: str) -> float:
        """The number at `#` in the caption: `said("# cells")`."""
        before, _, after = pattern.partition("#")
        match = re.search(re.escape(before) + rf"({_FIGURE.pattern})" + re.escape(after), self.caption)
        if match is None:
            raise ValueError(f"the caption does not say '{pattern}'")
        return _number(match[1])


def _number(text: str) -> float:
    value = float(text.replace(",", "").replace("−", "-"))
    return int(value) if value.is_integer() and "." not in text else value


@cache
def block(page: str, name: str) -> Block:
    """The block `name` of a page below docs/.

    Raises:
        ValueError: there is none.
    """
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    match = re.search(rf"<!-- begin {name} -->\n(.*?)<!-- end {name} -->", text, re.DOTALL)
    if match is None:
        raise ValueError(f"{page} has no block '{name}'")
    lines = match[1].splitlines()
    table = [_cells(line) for line in lines if line.startswith("|")]
    return Block(
        "\n".join(line for line in lines if not line.startswith("|")),
        table[0] if table else (),
        tuple(table[2:]),
    )


def _cells(line: str) -> tuple[str, ...]:
    return tuple(cell.strip() for cell in line.strip().strip("|").split(" | "))
