"""A result table: shown in the terminal, saved as Markdown and CSV, and written into a page between two
markers."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as Grid

FOLDER = Path("results/measuring")


@dataclass(frozen=True)
class Table:
    """A table as texts, with its numbers unrounded beside it.

    Args:
        name: of its files and of its markers in a page.
        rows: the texts of each line.
        records: the same unrounded, one line of the CSV each.
        texts: columns that hold no numbers.
    """

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    records: tuple[Mapping[str, Any], ...]
    texts: tuple[str, ...] = ()

    def markdown(self) -> str:
        lines = [
            self.columns,
            tuple("---" if column in self.texts else "---:" for column in self.columns),
            *self.rows,
        ]
        return "\n".join([self.caption, "", *("| " + " | ".join(line) + " |" for line in lines)]) + "\n"

    def save(self, folder: Path) -> None:
        """Writes `<name>.md` and `<name>.csv`."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.name}.md").write_text(self.markdown(), encoding="utf-8")
        write_records(folder, self.name, self.records)

    def write_into(self, *pages: Path) -> None:
        """Writes the table between the lines `<!-- begin NAME -->` and `<!-- end NAME -->` of the first
        Markdown page that has them.

        Raises:
            ValueError: no page has them.
        """
        begin, end = (f"<!-- {side} {self.name} -->" for side in ("begin", "end"))
        for page in pages:
            before, found_begin, rest = page.read_text(encoding="utf-8").partition(begin)
            _, found_end, after = rest.partition(end)
            if found_begin and found_end:
                page.write_text(f"{before}{begin}\n{self.markdown()}{end}{after}", encoding="utf-8")
                return
        raise ValueError(
            f"{', '.join(map(str, pages))} has no place for the table: it needs the lines {begin} and {end}"
        )

    def show(self, console: Console | None = None) -> None:
        grid = Grid()
        console = console or Console(width=200)
        for column in self.columns:
            grid.add_column(column, justify="left" if column in self.texts else "right")
        for row in self.rows:
            grid.add_row(*row)
        console.print(self.caption)
        console.print(grid)

    def publish(self, options: argparse.Namespace) -> None:
        """Saves, writes and shows the table as the options of `add_options` ask for."""
        self.save(options.out)
        if options.write:
            self.write_into(*options.write)
        self.show()


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, default=FOLDER, help=f"folder of the Markdown and the CSV ({FOLDER})"
    )
    parser.add_argument(
        "--write",
        type=Path,
        nargs="+",
        default=[],
        metavar="PAGE",
        help="Markdown pages, one with a place for the table",
    )


def write_records(folder: Path, name: str, records: Sequence[Mapping[str, Any]]) -> None:
    """Writes `<name>.csv` into a folder that exists. All records have the keys of the first."""
    with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(records[0]) if records else [])
        writer.writeheader()
        writer.writerows(records)


def read_records(folder: Path, name: str) -> list[dict[str, str]]:
    """Reads the records of a table that was saved there; none if there is no such table."""
    path = folder / f"{name}.csv"
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
