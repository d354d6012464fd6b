"""The command `longca compare`: two sets of records, or records and published numbers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longca.lab.cli.options import (
    DirectionFilter,
    Json,
    KernelFilter,
    MaskFilter,
    Results,
    SeqlenFilter,
    StrategyFilter,
    WorldFilter,
    print_json,
    print_table,
    print_text,
    selection,
)
from longca.lab.cli.records import open_records

if TYPE_CHECKING:
    from longca.lab.compare import Comparison, Rule
    from longca.lab.compare.tables import Described
    from longca.lab.studies import Record, Selection

PUBLISHED = "published"


def command(
    a: Annotated[
        str, typer.Argument(metavar="A", help="A study, its folder, or files of records divided by commas")
    ],
    b: Annotated[
        str,
        typer.Argument(
            metavar="B", help="The same; or 'published', for the numbers that others have published"
        ),
    ],
    results: Results = None,
    kernel: KernelFilter = "",
    strategy: StrategyFilter = "",
    mask: MaskFilter = "",
    direction: DirectionFilter = "",
    seqlen: SeqlenFilter = "",
    world: WorldFilter = "",
    tolerance: Annotated[
        str,
        typer.Option(
            help="Speeds that differ by no more are the same, even if repeats tell them apart: 5%  "
            "[default: as repeats of identical cells differ]",
            show_default=False,
        ),
    ] = "",
    by_rate: Annotated[
        bool, typer.Option("--by-rate", help="Compare TFLOP/s even across models of GPUs")
    ] = False,
    fail_on: Annotated[
        str, typer.Option(help="Exit code 1 if a cell is so: 'slower:5%,broke,incorrect'")
    ] = "",
    show_all: Annotated[bool, typer.Option("--all", help="Show all changes, not the ten largest")] = False,
    markdown: Annotated[
        Path | None, typer.Option(help="Write it as a Markdown page, too", show_default=False)
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write it as an offline HTML page, too", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare B with A: what is faster, slower, broken or new.

    Speeds differ where they differ by more than repeats of identical cells do. Two models of GPUs are
    compared by their share of peak.
    """
    from longca.core import UserError
    from longca.lab.compare import compare_published, compare_records, matched, parse_fail_on
    from longca.lab.compare.tables import Described
    from longca.lab.published import load_published, load_sources

    rule = _rule(tolerance, by_rate)
    conditions = parse_fail_on(fail_on, rule)
    if a == PUBLISHED:
        raise UserError(
            "The published numbers are no records",
            todo=f"Give them as the second: `longca compare RECORDS {PUBLISHED}`",
        )
    chosen = selection(kernel, strategy, mask, direction, seqlen, world)
    first, problems = _records(a, results)
    if b == PUBLISHED:
        first, _ = _selected(chosen, first, [])
        comparison = compare_published(first, load_published(), rule=rule)
        sources = "; ".join(f"{source.title} ({source.how})" for source in load_sources().values())
        sides = [_described(a, first), Described(PUBLISHED, f"published: {sources}")]
    else:
        other, more = _records(b, results)
        first, other = _selected(chosen, first, other)
        comparison = compare_records(first, other, rule=rule)
        sides = [_described(a, first), _described(b, other)]
        problems = problems + more
    count = None if show_all else 10
    _write(comparison, sides, count, markdown, html)
    failures = matched(comparison, conditions)
    if as_json:
        print_json(comparison.as_dict() | {"failed_on": failures, "problems": problems})
    else:
        _print(comparison, sides, count)
        for line in (
            *(f"skipped {problem}" for problem in problems),
            *(f"failed on {failure}" for failure in failures),
        ):
            print(line)
    if failures:
        raise typer.Exit(1)


def _rule(tolerance: str, by_rate: bool) -> Rule:
    from longca.lab.compare import Rule, parse_share

    share = (
        parse_share(tolerance, f"'{tolerance}' is no tolerance", "Write `--tolerance 3%`")
        if tolerance
        else None
    )
    return Rule(share, by_rate)


def _records(text: str, results: Path | None) -> tuple[list[Record], list[str]]:
    """The records of one side, and the files that could not be read. Raises UserError if there are no
    records."""
    from longca.core import UserError

    opened = open_records([text] if Path(text).exists() else text.split(","), results)
    if not opened.records:
        raise UserError(
            f"There are no records in '{text}'",
            why=f"{opened.problems[0]}" if opened.problems else "",
            todo="" if opened.problems else "Measure first with `longca run`",
        )
    return opened.records, [str(problem) for problem in opened.problems]


def _selected(chosen: Selection, a: list[Record], b: list[Record]) -> tuple[list[Record], list[Record]]:
    """The records whose cells pass: a name may stand on one side only. Raises UserError if none passes on
    either."""
    accepted = {
        cell.cell_id for cell in chosen.apply({record.cell_id: record.cell for record in (*a, *b)}.values())
    }
    return [record for record in a if record.cell_id in accepted], [
        record for record in b if record.cell_id in accepted
    ]


def _described(name: str, records: list[Record]) -> Described:
    from longca.core import Hardware
    from longca.lab.compare.tables import Described
    from longca.lab.store import View
    from longca.lab.store.text import plural

    devices = Counter(device for record in records if (device := View(record, Hardware()).device))
    days = sorted({record.started_at[:10] for record in records})
    when = " to ".join(dict.fromkeys((days[0], days[-1]))) if days else ""
    return Described(
        name,
        ", ".join(
            part for part in (f"{name}: {plural(len(records), 'record')}", *sorted(devices), when) if part
        ),
    )


def _write(
    comparison: Comparison,
    sides: list[Described],
    count: int | None,
    markdown: Path | None,
    html: Path | None,
) -> None:
    from longca.core import escaped
    from longca.lab.store import replace_file

    if markdown is not None:
        from longca.lab.compare.markdown import markdown as as_markdown

        replace_file(markdown, escaped(as_markdown(comparison, sides, count)).encode())
    if html is not None:
        from longca.lab.compare.page import page

        replace_file(html, page(comparison, sides, count).encode())


def _print(comparison: Comparison, sides: list[Described], count: int | None) -> None:
    """The conclusion first; long lines are wrapped to the terminal."""
    from longca.lab.compare.tables import lines, tables

    print_text(comparison.conclusion, style="bold")
    for line in lines(comparison, sides):
        print_text(line)
    print()
    for table in tables(comparison, count):
        print_table(table.title, list(table.columns), [list(row) for row in table.rows])
    for source, note in comparison.notes:
        print_text(f"{source}: {note}")
